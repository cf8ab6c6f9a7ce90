"""librocketmq through `rocketmq-client-python`: loaded without a compiler, tested, messages read completely.

The Python package cuts bodies at their first NUL, and cannot list properties: both are read through the library's C++
symbols, which `check` tests first. Without them, or with another layout, all raises `LibraryError`. Standard library
only.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sidecar.sources.rocketmq.native.child.frames import LibraryMessage

_RTLD_DI_LINKMAP = 2
_JUMPS_BYTES, _NAMES, _SYMBOLS, _JUMPS = 2, 5, 6, 23
"""Tags of an ELF file's dynamic section."""
_ENTRY = struct.Struct("<qQ")
_JUMP = struct.Struct("<QQq")
_SYMBOL_BYTES = 24


class _LinkMap(ctypes.Structure):
    _fields_ = (("base", ctypes.c_size_t), ("name", ctypes.c_char_p), ("dynamic", ctypes.c_size_t))


def replace(library: Any, symbol: str, function: Any) -> None:
    """Let the library call a `ctypes` function, which the caller keeps alive, where it calls its own `symbol`.

    Raises:
        LookupError: The library does not call that by its name.
    """
    loaded = ctypes.POINTER(_LinkMap)()
    ctypes.CDLL(None).dlinfo(ctypes.c_void_p(library._handle), _RTLD_DI_LINKMAP, ctypes.byref(loaded))
    base, facts = loaded.contents.base, dict(_entries(loaded.contents.dynamic))
    names, symbols, jumps = (facts[tag] + (0 if facts[tag] >= base else base) for tag in (_NAMES, _SYMBOLS, _JUMPS))
    for slot, info, _ in _JUMP.iter_unpack(ctypes.string_at(jumps, facts[_JUMPS_BYTES])):
        name = ctypes.c_uint32.from_address(symbols + (info >> 32) * _SYMBOL_BYTES).value
        if ctypes.string_at(names + name) == symbol.encode():
            ctypes.c_void_p.from_address(base + slot).value = ctypes.cast(function, ctypes.c_void_p).value
            return
    raise LookupError(symbol)


def _entries(address: int) -> Iterator[tuple[int, int]]:
    while True:
        tag, value = _ENTRY.unpack(ctypes.string_at(address, _ENTRY.size))
        if not tag:
            return
        if tag in (_JUMPS_BYTES, _NAMES, _SYMBOLS, _JUMPS):
            yield tag, value
        address += _ENTRY.size


CLIENT, LIBRARY = "client", "library"
"""Folders of the installed packages: both are called `rocketmq`, and would overwrite each other."""
_ABSENT = {
    "CreateOrderlyProducer",
    "CreateTransactionProducer",
    "SendMessageOrderlyByShardingKey",
    "SendMessageTransaction",
}
"""Functions of producers that the Python package binds at its import, although the library lacks them."""
FIRST_OFFSET = 4
"""Value of the library's `ConsumeFromWhere`: a queue without a commit is read from its first message."""
_STRING_LENGTH_AT = -24
"""Offset from the text of a `std::string` in GCC's layout before 2015, with which this library was built."""
_MESSAGE_BYTES = 200
_LAYOUT = struct.Struct("<8xi4xQ8xQ56xq8xqq8xii4xi40xQ")
"""Layout of a `MQMessageExt`: system flag, topic, body, offset, born, stored, queue, size, times handed back, place."""
_SIZE_AT, _PROPERTIES_AT, _TEXTS_END = 0x8C, 0x30, 0x28
_POINTER, _NUMBER, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_FIELDS = (
    ("GetMessageQueueId", _NUMBER), ("GetMessageQueueOffset", _LONG), ("GetMessageBornTimestamp", _LONG),
    ("GetMessageStoreTimestamp", _LONG), ("GetMessageReconsumeTimes", _NUMBER),
    ("_ZNK8rocketmq9MQMessage10getSysFlagEv", _NUMBER), ("GetMessageStoreSize", _NUMBER),
    ("_ZNK8rocketmq9MQMessage8getTopicEv", _POINTER), ("_ZNK8rocketmq12MQMessageExt14getOffsetMsgIdEv", _POINTER),
    ("_ZNK8rocketmq9MQMessage7getBodyEv", _POINTER),
)  # fmt: skip
"""The library's own accessors of a message, addresses of texts last; called only by `Reader.check`."""
_TEXTS = 3
_INT, _LENGTH = struct.Struct("<i"), struct.Struct("<Q")
_MEMORY = (ctypes.c_char * ((1 << 47) - 1)).from_address(0)
"""All of the process's memory: a slice of it takes 0.2 us, `ctypes` objects for the same about 4."""
_CONCURRENTLY = 2
_AHEAD_AT, _AHEAD_MAX = 0xF4, 1_000
"""Offset in a `DefaultMQPushConsumer` of its limit of messages read ahead of a queue, and the initial limit."""
_PULL_TIMEOUT_AT, _PULL_TIMEOUT_MS = 0x144, 30_000
"""Offset of its timeout for an answer to a pull, and the initial timeout."""
_PULLS = (
    ("_ZN8rocketmq11PullRequest16getCacheMsgCountEv", (ctypes.c_void_p,)),
    ("_ZN8rocketmq11PullRequest10putMessageERSt6vectorINS_12MQMessageExtESaIS2_EE", (ctypes.c_void_p, ctypes.c_void_p)),
)
"""Functions called before each pull, with the queue, for the number of its messages; and with a pull's result."""
_MANY = (1 << 31) - 1


class LibraryError(Exception):
    """The library is missing, or is not one that reads messages completely."""


class _Lenient(ctypes.CDLL):
    """Returns a failing function for functions that the library lacks and that are never called."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in _ABSENT:
                raise
            missing = ctypes.CFUNCTYPE(ctypes.c_int)(lambda *_: -1)
            setattr(self, name, missing)
            return missing


def load(folder: Path) -> Any:
    """The module `rocketmq.client` of the folder, over the folder's library."""
    library = folder / LIBRARY / "rocketmq" / "librocketmq.so"
    package = folder / CLIENT
    if not library.is_file() or not (package / "rocketmq" / "client.py").is_file():
        raise LibraryError(f"{folder} has no {LIBRARY if not library.is_file() else CLIENT}")
    loader, find = ctypes.cdll, ctypes.util.find_library
    ctypes.cdll = ctypes.LibraryLoader(_Lenient)
    ctypes.util.find_library = lambda name: str(library)
    sys.path.insert(0, str(package))
    try:
        import rocketmq.client
    except (ImportError, OSError, AttributeError) as error:
        raise LibraryError(f"the library in {folder} cannot be loaded: {error}") from error
    finally:
        ctypes.cdll, ctypes.util.find_library = loader, find
        sys.path.remove(str(package))
    return rocketmq.client


class Reader:
    """Reads messages from the library's memory: a call of the library for each field took most of the time."""

    def __init__(self, dll: Any) -> None:
        self._dll = dll
        pointer = ctypes.c_void_p
        dll = ctypes.PyDLL(dll._name, handle=dll._handle)  # keeps the GIL: other threads would gain nothing
        try:
            text = "_ZN8rocketmq9MQDecoder24messageProperties2StringERKSt3mapISsSsSt4lessISsESaISt4pairIKSsSsEEE"
            self._joined = _bound(dll, text, pointer, pointer, pointer)
            self._free_text = _bound(dll, "_ZNSsD1Ev", None, pointer)
            self._fields = [_bound(dll, name, kind, pointer) for name, kind in _FIELDS]
        except AttributeError as error:
            raise LibraryError(f"the library lacks what reads a message whole: {error}") from error

    def size(self, handle: int) -> int:
        """Memory of a message."""
        return int(_INT.unpack_from(_MEMORY, handle + _SIZE_AT)[0])

    def read(self, number: int, handle: int) -> LibraryMessage:
        """A message that the library handed over, under this number."""
        flag, topic, body, offset, born_ms, stored_ms, queue, _, times, id_text = _LAYOUT.unpack_from(_MEMORY, handle)
        return LibraryMessage(
            number, queue, offset, born_ms, stored_ms, times, flag,
            _text(topic), _text(id_text), self.properties(handle), _text(body),
        )  # fmt: skip

    def properties(self, handle: int) -> bytes:
        """All properties, in the order of their names."""
        text = ctypes.c_void_p()
        self._joined(ctypes.byref(text), handle + _PROPERTIES_AT)
        copied = _text(text.value or 0)
        self._free_text(ctypes.byref(text))
        return copied

    def check(self) -> None:
        """Create a message of every kind, read it, and compare its fields with the library's accessors."""
        dll, wrong = self._dll, "the library does not read messages whole: it is not the one of rocketmq 0.4.4"
        for body in (b"\0ab\0\xff" * 1000, b"", b"text"):
            handle = dll.CreateMessage(b"topic")
            for name, value in (("TAGS", b"paid"), ("colour", b"rot"), ("empty", b"")):
                dll.SetMessageProperty(handle, name.encode(), value)
            dll.SetByteMessageBody(handle, body, len(body))
            pairs = set(self.properties(handle).split(b"\2"))
            _, topic, address, *_ = _LAYOUT.unpack(ctypes.string_at(handle, _TEXTS_END).ljust(_MESSAGE_BYTES))
            whole = _text(address) == body and _text(topic) == b"topic"
            dll.DestroyMessage(handle)
            if not whole or not {b"TAGS\1paid", b"colour\1rot", b"empty\1"} <= pairs:
                raise LibraryError(wrong)
        sample = ctypes.create_string_buffer(bytes(range(_MESSAGE_BYTES)), _MESSAGE_BYTES)
        values = [field(ctypes.addressof(sample)) for field in self._fields]
        texts = [ctypes.c_void_p.from_address(address).value for address in values[-_TEXTS:]]
        if (*values[:-_TEXTS], *texts) != _in_order(_LAYOUT.unpack(sample.raw)):
            raise LibraryError(wrong)


def _in_order(fields: tuple[int, ...]) -> tuple[int, ...]:
    """The fields of `_LAYOUT` in the order of `_FIELDS`."""
    flag, topic, body, offset, born_ms, stored_ms, queue, size, times, id_text = fields
    return queue, offset, born_ms, stored_ms, times, flag, size, topic, id_text, body


def _bound(dll: Any, symbol: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    function = dll[symbol]  # a new object each time: other users' bindings stay unchanged
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]


def _text(begin: int) -> bytes:
    """The text of a `std::string` whose data is at this address."""
    end = begin + _LENGTH.unpack_from(_MEMORY, begin + _STRING_LENGTH_AT)[0]
    return _MEMORY[begin:end]  # type: ignore[return-value]  # of an array of characters it is bytes


def _begin_and_end(vector: int) -> tuple[int, int]:
    """Begin and end of a `std::vector`."""
    begin, end = (ctypes.c_void_p.from_address(vector + half).value or 0 for half in (0, 8))
    return begin, end


def listen(dll: Any, consumer: int, take: Callable[[list[int]], None]) -> Any:
    """Pass all messages that the library read at once to `take`, by an object like a C++ `MQMessageListener`.

    The library's C functions call back for one message after the other, in one thread for all messages read at once:
    the second would wait until the first is settled.

    Returns:
        An object to keep alive as long as the library runs.
    """

    def consume(_: int, messages: int) -> int:
        take(list(range(*_begin_and_end(messages), _MESSAGE_BYTES)))
        return 0

    pointer, number = ctypes.c_void_p, ctypes.c_int
    nothing = ctypes.CFUNCTYPE(None, pointer)(lambda _: None)
    kind = ctypes.CFUNCTYPE(number, pointer)(lambda _: _CONCURRENTLY)
    functions = nothing, nothing, ctypes.CFUNCTYPE(number, pointer, pointer)(consume), kind
    table = (pointer * 4)(*(ctypes.cast(function, pointer).value for function in functions))
    listener = (pointer * 8)(ctypes.addressof(table))
    _method(dll, "23registerMessageListenerEPNS_17MQMessageListenerE", pointer)(consumer, ctypes.addressof(listener))
    return functions, table, listener


def keep_packed(dll: Any) -> Any:
    """Let the library leave bodies compressed: it knows only zlib, and crashes with any other format.

    Returns:
        An object to keep alive as long as the library runs.
    """
    try:
        swap = _bound(dll, "_ZNSs4swapERSs", None, ctypes.c_void_p, ctypes.c_void_p)

        def inflate(packed: int, body: int) -> bool:
            swap(packed, body)
            return True

        kept = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)(inflate)
        replace(dll, "_ZN8rocketmq7UtilAll7inflateERSsS1_", kept)
    except (AttributeError, LookupError) as error:
        raise LibraryError(f"the library lacks what it unpacks bodies with: {error}") from error
    return kept


def begin_at_first(dll: Any, consumer: int) -> None:
    """Read queues without a commit from their first message; only the C++ interface can set this."""
    _method(dll, "19setConsumeFromWhereENS_16ConsumeFromWhereE", ctypes.c_int)(consumer, FIRST_OFFSET)


def read_ahead(dll: Any, consumer: int, messages_max: int) -> None:
    """Set the limit of messages read ahead of a queue."""
    _method(dll, "26setMaxCacheMsgSizePerQueueEi", ctypes.c_int)(consumer, messages_max)


def check_layout(consumer: int) -> None:
    """Check that a new consumer has the layout of rocketmq 0.4.4: the next two functions write into it."""
    for field_at, value in ((_AHEAD_AT, _AHEAD_MAX), (_PULL_TIMEOUT_AT, _PULL_TIMEOUT_MS)):
        if ctypes.c_int.from_address(consumer + field_at).value != value:
            raise LibraryError("the library's consumer is not the one of rocketmq 0.4.4")


def await_answers(consumer: int, timeout_ms: int) -> None:
    """Set the timeout for an answer to a pull, which the library awaits even if the broker is gone."""
    ctypes.c_int.from_address(consumer + _PULL_TIMEOUT_AT).value = timeout_ms


def ask_nothing(consumer: int) -> None:
    """Begin no pull until `read_ahead` is called: until then the library checks once a second.

    Otherwise it would retry a broker that is down without any pause.
    """
    ctypes.c_int.from_address(consumer + _AHEAD_AT).value = -1


def ask_before(dll: Any, may_pull: Callable[[int], bool], came: Callable[[int, int], None]) -> Any:
    """Let `may_pull` decide whether a queue is asked now or in a second; pass the size of each answer to `came`.

    Returns:
        An object to keep alive as long as the library runs.
    """
    pointer, number = ctypes.c_void_p, ctypes.c_int
    try:
        count, put = (_bound(dll, name, number, *kinds) for name, kinds in _PULLS)

        def counted(queue: int) -> int:
            return int(count(queue)) if may_pull(queue) else _MANY

        def putting(queue: int, messages: int) -> int:
            begin, end = _begin_and_end(messages)
            came(queue, (end - begin) // _MESSAGE_BYTES * dll.GetMessageStoreSize(begin) if end > begin else 0)
            return int(put(queue, messages))

        kept = ctypes.CFUNCTYPE(number, pointer)(counted), ctypes.CFUNCTYPE(number, pointer, pointer)(putting)
        for (name, _), function in zip(_PULLS, kept, strict=True):
            replace(dll, name, function)
    except (AttributeError, LookupError) as error:
        raise LibraryError(f"the library lacks what it pulls with: {error}") from error
    return kept


def persist(dll: Any, consumer: int) -> None:
    """Report acknowledged messages to the brokers; by itself the library does so every 5 s."""
    _method(dll, "21persistConsumerOffsetEv")(consumer)


def _method(dll: Any, symbol: str, *arguments: Any) -> Callable[..., Any]:
    return _bound(dll, f"_ZN8rocketmq21DefaultMQPushConsumer{symbol}", None, ctypes.c_void_p, *arguments)
