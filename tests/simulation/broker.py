"""The simulated broker: incarnations of partitions, each with its log, what is compacted and what is committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sidecar.core.claims import ClaimState, place_of
from sidecar.core.effects import CommitItem
from sidecar.core.lineage import Committed, Stamp
from sidecar.core.partition_state import NO_TRIES, PartitionState, Tries
from sidecar.state.offset_map import Identity, decode, encode
from tests.simulation.plan import TPS, Log, Plan, Row, key_of
from tests.support.memory_ledger import MemoryLedger

IDENTITY = Identity("cluster", "group", "topic", 7)
SCOPE = IDENTITY.scope
RULES = b"rule"


class BrokenPromiseError(AssertionError):
    """A promise does not hold; `kind` is one of lost, twice, stuck, and others."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


@dataclass(slots=True, eq=False)
class Life:
    """One incarnation of a partition: until an operator's reset, or until the topic is made again."""

    number: int
    log: Log
    identity: Identity = IDENTITY
    scope: str = SCOPE
    start: int = 0
    """Messages below are not to be delivered."""
    gone: set[int] = field(default_factory=set)
    """Compacted away."""
    stored: set[int] = field(default_factory=set)
    """What the receiver has."""
    letters: set[int] = field(default_factory=set)
    """Durably dead-lettered."""
    given_up: set[int] = field(default_factory=set)
    """Of these letters those that the receiver may have all the same."""
    inherited: set[int] = field(default_factory=set)
    """Offsets that an owner found above the watermark of a predecessor that had read them."""
    read: set[int] = field(default_factory=set)
    """Offsets that a process has read."""
    doubtful: set[int] = field(default_factory=set)
    """Offsets of parts that came with other rows than before, by ids: of a whole and its halves both may arrive."""
    hidden: set[int] = field(default_factory=set)
    """The known limit: left out of a part, or added to it, because a twin was compacted away."""
    ledger: MemoryLedger | None = None
    arrived: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Of all partitions, by key, the partition and offset that the receiver has; where there is a ledger."""
    history: list[Committed] = field(default_factory=list)
    """What is committed, and was before."""
    tries: Tries = NO_TRIES
    """The most that was ever committed of an intent."""
    newest: Stamp | None = None
    """Of the newest commit of all, forgotten ones too."""
    parents: dict[Stamp, Stamp | None] = field(default_factory=dict)
    """Of each ownership's commits, forgotten ones too, the commit that it went on from."""
    rules: int = 0
    """The version of the configuration under which the newest commit was made."""
    rewound: bool = False
    """Whether commits were ever forgotten: who does not remember them may send again what they settled."""
    refilled: Life | None = None
    """What it was before its log lost its end, and kept its name as nothing of that end was relied on."""
    same_below: int = 0
    """Up to here it has the messages of that one."""
    _text: str | None = None
    _intents: set[tuple[int | None, int, int]] = field(default_factory=set)
    _checked: int = 0

    def __post_init__(self) -> None:
        self.history = self.history or [Committed(PartitionState(self.start, self.start))]

    @property
    def committed(self) -> PartitionState:
        """The committed state."""
        return self.history[-1].state

    def rewind(self, to: int) -> None:
        """Forget all commits but the first `to`."""
        del self.history[to:]
        self._text = None
        self.rewound = True

    def shares(self, earlier: Life, last: int) -> bool:
        """Whether all messages up to `last` are those of this one, or of what its log was before."""
        life = self
        while life is not earlier and life.refilled is not None and last < life.same_below:
            life = life.refilled
        return life is earlier

    def descends(self, later: Stamp | None, earlier: Stamp) -> bool:
        """Whether the one commit was made from the other, or from what was."""
        while later is not None and later.token != earlier.token:
            later = self.parents.get(Stamp(later.token, 1))
        return later is not None and later.number >= earlier.number

    def found(self) -> Committed:
        """What is committed."""
        return self.history[-1]

    def check_codec(self) -> None:
        """What a new owner gets is what was committed."""
        found = self.found()
        self.inherited.update(range(found.state.watermark, found.state.seen))
        if self._text is not None:
            told = decode(self._text, found.state.watermark, self.identity, RULES)
            same = Committed(told.state, told.stamp, told.parent, told.ancestors) == found if told.state else False
            if not same or told.incarnation != self.identity.incarnation:
                raise BrokenPromiseError("codec", f"{found} came back as {told}")

    def commit(self, item: CommitItem, *, codec: bool) -> None:
        """A member's commit arrives."""
        assert item.stamp is not None
        assert item.lineage is not None
        state = item.state
        if codec:
            self._text = encode(self.identity, RULES, state, item.stamp, item.lineage.parent, item.lineage.named)
        self.history.append(Committed(state, item.stamp, item.lineage.parent, item.lineage.named))
        self.newest = item.stamp
        self.parents[Stamp(item.stamp.token, 1)] = item.lineage.parent
        self.tries = Tries(*map(max, zip(self.tries, *state.tries.values(), strict=True)))
        for key, lane in state.lanes.items():
            self._intents.update([(key, first, last) for first, last in lane.intents])
        for one in state.shared:
            self._intents.add((None, one.first, one.last))
        for offset in range(self._checked, state.watermark):
            if not self.settled(offset):
                text = f"{self.number}:{offset} is below the committed {state.watermark}, unsettled"
                raise BrokenPromiseError("lost", text)
            if self.ledger is not None and offset in self.stored - self.letters - self.gone:
                self._check_claim(self.ledger, offset)
        self._checked = max(self._checked, state.watermark)

    def key(self, offset: int) -> bytes:
        """The key of a message in the ledger."""
        return key_of(self.number, self.log.messages[offset])

    def _check_claim(self, ledger: MemoryLedger, offset: int) -> None:
        entry = ledger.entry(self.key(offset))
        if entry and entry[:2] == (place_of(TPS[self.number]), offset) and entry.state == ClaimState.PROCESSING:
            raise BrokenPromiseError("ledger", f"{self.number}:{offset} is committed, and its claim is open")

    def settled(self, offset: int) -> bool:
        """Whether a message, or a twin of it, has its end, or there is none to be had."""
        if offset not in self.log.wanted or offset in self.stored or offset in self.letters:
            return True
        if offset in self.gone or offset in self.hidden:
            return True
        if self.ledger is not None:
            return offset < self.start or self.key(offset) in self.arrived
        twins = self.log.twins_of(offset)
        ended = any(twin in self.stored or twin in self.letters for twin in twins)
        return ended or offset < self.start or self._forgone(offset, twins)

    def _forgone(self, offset: int, twins: Sequence[int]) -> bool:
        """The known limit: a message in flight with a duplicate was compacted away before the next owner read it.

        The duplicate stands as settled then, and hides later ones.
        """
        dropped = max((twin for twin in twins if twin <= offset and twin in self.inherited), default=-1)
        return any(twin < dropped and twin in self.read and twin in self.gone for twin in twins)

    def intended(self, key: int | None, first: int, last: int) -> bool:
        """Whether this intent was ever committed."""
        return (key, first, last) in self._intents

    def fetch(self, position: int, count: int) -> list[Row]:
        """Up to `count` messages from `position` on."""
        messages, gone = self.log.messages, self.gone
        if not gone:
            return messages[position : position + count]
        found: list[Row] = []
        while position < len(messages) and len(found) < count:
            if position not in gone:
                found.append(messages[position])
            position += 1
        return found


class Broker:
    """The partitions as they are now.

    Args:
        plan: The logs.
        ledger: Where duplicates are told, if any.
    """

    def __init__(self, plan: Plan, ledger: MemoryLedger | None = None) -> None:
        self._ledger = ledger
        self._arrived: dict[bytes, tuple[int, int]] = {}
        self.lives = [Life(number, log, ledger=ledger, arrived=self._arrived) for number, log in enumerate(plan.logs)]
        self._all = {(life.number, life.scope): life for life in self.lives}
        self.rules = 0
        """The version of the configuration that processes read when they start, or when they are told to."""

    def life(self, number: int, scope: str) -> Life:
        """An incarnation, perhaps an earlier one."""
        return self._all[number, scope]

    def reset(self, number: int, start: int) -> None:
        """The operator moves the group's offset."""
        old = self.lives[number]
        self._begin(number, old.log, old.identity.topic_id, start, old.gone)

    def make_again(self, number: int, log: Log, length: int) -> None:
        """The topic is deleted and made again, with `length` messages only."""
        topic = self.lives[number].identity.topic_id + "'"
        self._begin(number, log, topic, 0, set(range(length, len(log.messages))))

    def refill(self, life: Life, log: Log, at: int) -> None:
        """The log has lost its end and got other messages there; the broker knows nothing of that."""
        refilled = self._succeed(life, log, life.identity, at, life.history)
        refilled.refilled, refilled.same_below = life, at
        refilled._intents = {intent for intent in life._intents if intent[2] < at}

    def renew(self, life: Life, state: PartitionState) -> Life:
        """A member noticed that, and draws another incarnation."""
        identity = replace(life.identity, incarnation=life.identity.incarnation + 1)
        fresh = self._succeed(life, life.log, identity, len(life.log.messages), [Committed(state)])
        fresh.start = min(life.start, state.watermark)  # where no message is as remembered, all are delivered
        return fresh

    def change_rules(self, life: Life, rules: int) -> Life:
        """A member finds a commit that was made under other rules: its intents do not apply, so all comes again."""
        watermark = life.committed.watermark
        fresh = self.renew(life, PartitionState(watermark, watermark))
        fresh.rules, fresh.rewound = rules, False
        fresh.doubtful.update(offset for offset in life.stored if offset >= watermark)
        return fresh

    def _succeed(self, old: Life, log: Log, identity: Identity, at: int, history: list[Committed]) -> Life:
        """The same messages below `at`, and what became of them."""
        life = Life(old.number, log, identity, identity.scope, old.start, {o for o in old.gone if o < at})
        for name in ("stored", "letters", "given_up", "doubtful", "read"):
            getattr(life, name).update(o for o in getattr(old, name) if o < at)
        life.history, life.rewound, life.tries = history, True, old.tries
        self.lives[old.number] = self._all[old.number, life.scope] = life
        return life

    def _begin(self, number: int, log: Log, topic: str, start: int, gone: set[int]) -> None:
        identity = Identity("cluster", "group", topic, self.lives[number].identity.incarnation + 1)
        life = Life(number, log, identity, identity.scope, start, gone)
        life.ledger, life.arrived = self._ledger, self._arrived
        self.lives[number] = self._all[number, life.scope] = life
