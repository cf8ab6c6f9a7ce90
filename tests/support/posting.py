"""Posts parts of messages to a receiver as the daemon does."""

from __future__ import annotations

from sidecar.core.parts import Batch, Intent, Part
from sidecar.core.records import Answer, Fragment, TopicPartition
from sidecar.sinks.endpoint import Endpoint
from sidecar.sinks.formats import FormatName, make_framer
from sidecar.sinks.http import Compression, HttpSink
from tests.support.messages import ListColumns, Msg, tags_of

TP = TopicPartition("orders", 3)


class Client:
    """Frames messages and posts them."""

    def __init__(self, url: str, name: FormatName, compression: Compression = "gzip") -> None:
        self.framer = make_framer(name, ListColumns(), tags_of)
        self.sink = HttpSink(Endpoint(url), self.framer, format=name, compression=compression)

    def part(self, first: int, values: list[bytes | None]) -> Part:
        """Messages of consecutive offsets as a part."""
        data, _ = self.framer.frame(TP, [Msg(first + i, value) for i, value in enumerate(values)])
        offsets = range(first, first + len(values))
        intent = Intent(1, first, offsets[-1])
        return Part(TP, "s", "g", first, offsets[-1], [Fragment(offsets, data)], len(values), len(data) + 1, intent)

    def post(self, *parts: Part) -> Answer:
        """Deliver parts as one batch."""
        return self.sink.deliver(Batch(1, "g", list(parts)))
