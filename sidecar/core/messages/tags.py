"""Wanted messages and their groups: tag expressions and tables of groups."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from sidecar.core.messages.fields import Raw
from sidecar.core.messages.masks import TagMask, mask_of

UNTAGGED = ""
"""The group of messages without a tag."""
MEMO_MAX, MEMO_BYTES_MAX = 65_536, 16 << 20
MEMO_KEY_BYTES_MAX = 64
_ENTRY_BYTES, _ITEM_BYTES, _RATIO = 200, 48, 8
"""Memory of an entry beside its bytes; of each of several values in it; of a byte with its result, at most JSON that
escapes each byte."""
REFUSED_MAX = 16_384
UNWANTED_MAX, UNWANTED_CHARACTERS_MAX = 10, 64
NO_TAG = "no tag"

K = TypeVar("K", bound=Raw | str)
V = TypeVar("V")


class TagError(ValueError):
    """A tag expression or table of groups is invalid; `group` is the group at fault, if any."""

    def __init__(self, message: str, group: str | None = None) -> None:
        super().__init__(message)
        self.group = group


def parse_expression(text: str) -> frozenset[bytes] | None:
    """Tags of an expression in RocketMQ's syntax, ``a || b``; None for ``*``, which also selects untagged messages.

    In quotes, a tag is taken as it is: ``"a, b"`` is one tag. Without them, what can only be a mistake is refused: it
    would be a tag that no message has.

    Raises:
        TagError: An empty tag, a lone ``|``, ``*`` beside or in a tag, or another syntax; the text has the right form.
    """
    if text.strip() == "*":
        return None
    tags: list[str] = []
    position, more = 0, True
    while more:
        found = _TAG.match(text, position)
        if found is None:
            raise TagError(f"{text!r} has a single |: alternatives are separated by ||")
        quoted, bare = found[1] or found[2], found[3]
        if quoted is None and (why := _mistake(bare)):
            raise TagError(f"{text!r} {why}")
        tags.append(bare if quoted is None else quoted)
        position, more = found.end(), bool(found[4])
    return frozenset(tag.encode("utf-8", "surrogateescape") for tag in tags)


def _mistake(tag: str) -> str:
    """Why the text can be no tag unless it is in quotes; empty if it can."""
    if not tag:
        return "has an empty tag: write a || b, or * for all"
    if tag == "*":
        return "has * beside other tags: * alone takes all"
    quote = "'" if '"' in tag else '"'
    literal = f"or {quote}{tag}{quote} in quotes if this is the tag itself"
    if negated := _NEGATED.match(tag):
        return f"negates a tag: write {tag[negated.end() :]} into exclude, {literal}"
    if "*" in tag:
        return f"has a * in a tag, which is no wildcard: name each tag, as in a || b, {literal}"
    parts = [part for part in _OTHER_SYNTAX.split(tag) if part]
    if parts != [tag]:
        return f"has several tags without || between them: write {' || '.join(parts) or 'a || b'}, {literal}"
    if tag[0] in _QUOTES or tag[-1] in _QUOTES or any(tag.count(a) != tag.count(b) for a, b in _BRACKETS):
        return f"has a quote or bracket without its counterpart: write {tag.strip(_ODD) or 'a || b'}, {literal}"
    return ""


_TAG = re.compile(r"""\s*(?:"([^"]+)"|'([^']+)'|([^|]*?))\s*(\|\||\Z)""")
_NEGATED = re.compile(r"!\s*|not\s+", re.IGNORECASE)
_OTHER_SYNTAX = re.compile(r"\s*(?:[,;]|&&)\s*|\s+(?:(?:or|and)\s+)?", re.IGNORECASE)
_QUOTES, _BRACKETS, _ODD = "'\"", (("(", ")"), ("[", "]"), ("{", "}")), "'\"()[]{}"


def string_hash_code(tag: str) -> int:
    """Java's ``String.hashCode``, a signed 32-bit number: RocketMQ's tagsCode."""
    code = 0
    units = tag.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        code = 31 * code + (units[i] << 8 | units[i + 1]) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code


def _bytes_of(raw: object) -> int:
    if isinstance(raw, tuple):
        return len(raw) + sum(map(len, raw))
    return len(raw) if isinstance(raw, bytes | str) else 0


class Memo(dict[K, V], Generic[K, V]):
    """Remembers results of a function, in 16 MiB; `memo[x]` is one look-up in a dictionary.

    Arguments of more than 64 bytes are not remembered: a tag may be a whole key, and a memo of those takes gigabytes.
    What producers, brokers or receivers write is remembered here, and nowhere by its count alone.

    Args:
        within: Results are remembered only for what this has once they are computed.
    """

    __slots__ = ("_compute", "_most", "_nbytes", "_within")

    def __init__(self, compute: Callable[[K], V], most: int = MEMO_MAX, within: Container[K] | None = None) -> None:
        super().__init__()
        self._compute = compute
        self._most = most
        self._within = within
        self._nbytes = 0

    def __missing__(self, key: K) -> V:
        if self._within is not None:
            value = self._compute(key)
            if key not in self._within:
                return value
        nbytes = _bytes_of(key)
        taken = _ENTRY_BYTES + _ITEM_BYTES * (len(key) if isinstance(key, tuple) else 0) + _RATIO * nbytes
        if nbytes > MEMO_KEY_BYTES_MAX:
            return self._compute(key)
        self._nbytes += taken
        if len(self) >= self._most or self._nbytes > MEMO_BYTES_MAX:
            self.clear()
            self._nbytes = taken
        value = self[key] = self._compute(key)
        return value

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._nbytes = 0


class RefusedTags(dict[Raw, None]):
    """The first contents that a mask refused; further ones are counted.

    A topic may have few tags, and then a look-up is quicker than a hash. If it has many, a memo is for the wanted ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self.room = REFUSED_MAX
        """Number of contents that may still be remembered."""
        self.others = 0
        """Messages with contents that are not remembered."""

    def take(self, raw: Raw) -> bool:
        """Use some room, and return whether this content is remembered: long ones are not."""
        self.room -= 1
        if _bytes_of(raw) > MEMO_KEY_BYTES_MAX:
            return False
        self[raw] = None
        return True

    def count(self, raws: Sequence[Raw], others: int) -> int:
        """How many of these contents the mask refused, given `others` before they were looked at."""
        return (sum(map(self.__contains__, raws)) if self else 0) + self.others - others


class TagFilter:
    """Decides by a message's tags whether it is wanted, and returns its group.

    A message with several tags is wanted if at least one is subscribed and none is excluded; it goes to the group of
    its first subscribed tag. A tag in no group has its own group, named like the tag.

    Args:
        subscribe: ``*`` (all messages, including those without a tag) or ``a || b``.
        exclude: Tags that are never wanted, ``a || b``; empty for none.
        groups: Group name to expression; ``*`` takes all tags that no other group names.
        split: Separator of tags in one value; empty if a value is one tag.

    Raises:
        TagError: Bad expression, overlapping groups, or a grouped tag that is not subscribed.

    >>> tags = TagFilter("created || paid", groups={"money": "paid"})
    >>> tags.group(b"paid"), tags.group(b"created"), tags.group(b"lost")
    ('money', 'created', None)
    """

    def __init__(
        self, subscribe: str = "*", exclude: str = "", groups: Mapping[str, str] | None = None, split: str = ""
    ) -> None:
        self._wanted = parse_expression(subscribe or "*")
        excluded = parse_expression(exclude) if exclude else frozenset()
        if excluded is None:
            raise TagError("exclude: * would take no message at all")
        self._excluded = excluded
        self.wants = TagMask(None if self._wanted is None else self._wanted - excluded)
        """Refuses most unwanted tags, before the exact look."""
        self.refused = RefusedTags()
        """Contents that the mask refused."""
        self._separator = split.encode()
        self.unwanted: dict[str, None] = {}
        """The first unwanted tags that messages had, for people; `NO_TAG` stands for messages without one."""
        self._rest: str | None = None
        self._named: dict[bytes, str] = {}
        for name, expression in (groups or {}).items():
            self._add_group(name, expression)
        self._check_names(groups or {})
        self.may_want = self.wants.predicate(self.tags, is_plain=not split)
        """The mask's answer for a raw field value; never False for a wanted one."""
        self.plain_mask = None if split or self.wants.takes_all else self.wants
        """The mask, if it can refuse something, and a single value is one tag."""
        self.groups: Memo[Raw, str | None] = _Groups(self)
        """Group by raw field value, None if it is not wanted: the table of the hot path."""

    def _add_group(self, name: str, expression: str) -> None:
        tags = parse_expression(expression)
        if tags is None:
            if self._rest is not None:
                raise TagError(
                    f"takes * as the group {self._rest!r} does: only one can have the tags of no other", name
                )
            self._rest = name
            return
        for tag in sorted(tags):
            if why := self._why_not(tag):
                text = tag.decode("utf-8", "surrogateescape")
                raise TagError(f"names the tag {text!r}, {why}, or take it out of this group", name)
            self._named[tag] = name

    def _why_not(self, tag: bytes) -> str:
        if tag in self._named:
            return f"as the group {self._named[tag]!r} does, and a message goes to one group: take it out there"
        if self._wanted is not None and tag not in self._wanted:
            return "which subscribe leaves out, so no such message is read: add it there"
        return "which exclude drops, so no such message is kept: take it out there" if tag in self._excluded else ""

    def _check_names(self, groups: Mapping[str, str]) -> None:
        for name in groups:
            tag = name.encode("utf-8", "surrogateescape")
            own = self._rest is None and tag not in self._named and (self._wanted is None or tag in self._wanted)
            if own and tag not in self._excluded:
                raise TagError(
                    f"has the name of the tag {name!r}, which stands in no group and so has a group of its own, of the "
                    "same name: add the tag to this group, or give the group another name",
                    name,
                )

    def tags(self, raw: Raw) -> tuple[bytes, ...]:
        """The tags in a raw field value, in order, without empty ones."""
        if not raw:
            return ()
        values: Iterable[bytes] = raw if isinstance(raw, tuple) else (raw,)
        if self._separator:
            values = (tag.strip() for value in values for tag in value.split(self._separator))
        return tuple(tag for tag in values if tag)

    def group(self, *tags: bytes) -> str | None:
        """The group of a message with these tags, None if it is not wanted."""
        return self.groups[tags]

    def mask(self, raw: Raw) -> int:
        """The 64-bit mask of a message with this raw field value: the OR of the bits of its tags."""
        return mask_of(self.tags(raw))

    def may_match(self, mask: int) -> bool:
        """Whether a message with this mask may be wanted; never False for a wanted one.

        >>> tags = TagFilter("created || paid")
        >>> tags.may_match(tags.mask(b"paid")), tags.may_match(tags.mask(b"viewed"))
        (True, False)
        """
        return self.wants.may_match(mask)

    def mask_of_group(self, group: str) -> TagMask:
        """Says which messages cannot be of this group."""
        if self._wanted is None and group in (UNTAGGED, self._rest):
            return TagMask(None)
        if group == self._rest:
            return TagMask((self._wanted or frozenset()) - self._excluded - self._named.keys())
        named = [tag for tag, name in self._named.items() if name == group]
        return TagMask(named or [group.encode("utf-8", "surrogateescape")])

    def look(self, raw: Raw) -> str | None:
        """Look at the tags themselves: the group, None if the message is not wanted."""
        group = self._group_of(raw)
        if group is None:
            self.show(raw)
        return group

    def show(self, raw: Raw) -> None:
        """Keep the tag of an unwanted message for people, if it is among the first."""
        if len(self.unwanted) < UNWANTED_MAX:
            tags = self.tags(raw)
            shown = repr(tags[0].decode("utf-8", "backslashreplace")[:UNWANTED_CHARACTERS_MAX]) if tags else NO_TAG
            self.unwanted[shown] = None

    def _group_of(self, raw: Raw) -> str | None:
        tags = self.tags(raw)
        if not tags:
            return (self._rest or UNTAGGED) if self._wanted is None else None
        if not self._excluded.isdisjoint(tags):
            return None
        for tag in tags:
            if self._wanted is None or tag in self._wanted:
                return self._named.get(tag) or self._rest or tag.decode("utf-8", "surrogateescape")
        return None


class _Groups(Memo[Raw, str | None]):
    """Remembers a filter's results by tags, and the first contents that its mask refused."""

    __slots__ = ("_filter", "_may_want", "_refused")

    def __init__(self, filter_: TagFilter) -> None:
        super().__init__(filter_.look)
        self._filter = filter_
        self._may_want = filter_.may_want
        self._refused = filter_.refused

    def __missing__(self, key: Raw) -> str | None:
        if self._may_want(key):
            return super().__missing__(key)
        refused = self._refused
        if refused.room:
            self._filter.show(key)
            if refused.take(key):
                self[key] = None
                return None
        refused.others += 1
        return None
