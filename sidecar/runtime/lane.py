"""The rules of the fast lane, from the settings, and the reasons against it. Starts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

from sidecar.config.model import Settings
from sidecar.config.tags import Dedup, Tags
from sidecar.core.messages.fields import Field
from sidecar.core.messages.tags import TagFilter
from sidecar.sinks.formats import row_head

if TYPE_CHECKING:
    from sidecar_fastlane import Place, Rules

    from sidecar.core.windows.idruns import Keys, Mask, SortedRun

PLACES = ("header", "key", "topic")


def refusal(settings: Settings) -> str:
    """The reason why the lane cannot sort messages of these settings; empty if it can."""
    return _told(
        {
            **_unreadable(settings),
            "delayed messages": settings.delay is not None,
            "a ledger": settings.dedup.ledger is not None,
            f"sink.{settings.sink.name}": settings.sink.name != "http",
            "the format json_array": settings.sink.chosen.row_format not in ("envelope", "ndjson"),
        }
    )


def refusal_on_spark(settings: Settings) -> str:
    """The reason why a job on Spark cannot use the lane; empty if it can. A table's rows are columns, not fragments."""
    return refusal(settings) if settings.sink.chosen.table is None else refusal_of_fields(settings)


def refusal_of_fields(settings: Settings) -> str:
    """The reason why the lane cannot read tags and ids of these settings; empty if it can."""
    return _told(_unreadable(settings))


def _unreadable(settings: Settings) -> dict[str, bool]:
    tags, dedup = settings.tags.field, settings.dedup
    return {
        "tags in JSON": tags is not None and tags.kind not in PLACES,
        "message ids in JSON, or as numbers": dedup.field is not None
        and (dedup.field.kind not in PLACES or dedup.as_ != "text"),
    }


def _told(reasons: Mapping[str, bool]) -> str:
    return ", ".join(what for what, is_so in reasons.items() if is_so)


def lane_summary(settings: Settings, *, on_spark: bool) -> str:
    """Whether the lane is to read Kafka's messages, for `validate`, which loads no client; empty if it is not."""
    refused = refusal_on_spark(settings) if on_spark else refusal(settings)
    if settings.source.name != "kafka" or settings.source.kafka.lane == "off" or refused:
        return ""
    if on_spark and settings.sink.chosen.table is None and settings.spark and settings.spark.reader == "connector":
        return ""
    return ", in C" if settings.source.kafka.lane == "on" or is_built() else ""


def is_built() -> bool:
    """Whether the package is installed, with its compiled part."""
    try:
        from sidecar_fastlane import LIBRARY
    except ImportError:
        return False
    return LIBRARY.exists()


def lane_rules(tags: Tags, dedup: Dedup, row_format: str, filter_: TagFilter) -> Mapping[str, Any]:
    """The fields of `ReadingRules` for the lane."""
    rules: dict[str, Any] = {"sorting": rules_of(tags, dedup, row_format, filter_)}
    if dedup.field is None:
        return rules
    import numpy as np  # takes 0.1 s
    from sidecar_fastlane.search import Search

    native = Search()

    def search(runs: Iterable[SortedRun], keys: Keys) -> Mask:
        found: Mask = np.zeros(len(keys), np.bool_)
        native.find(runs, keys, found)
        return found

    return {**rules, "search": search}


def rules_of(tags: Tags, dedup: Dedup, row_format: str, filter_: TagFilter) -> Rules:
    """The rules of the lane, for settings that `refusal` accepts."""
    from sidecar_fastlane import Rules

    return Rules(
        group_of=filter_.groups.__getitem__,
        row_head=row_head,
        **fields_of(tags, dedup, filter_),
        whole=bool(tags.exclude),
        format=cast(Literal["envelope", "ndjson"], row_format),
    )


def fields_of(tags: Tags, dedup: Dedup, filter_: TagFilter) -> Mapping[str, Any]:
    """The fields of tags and ids, and the mask of tags, as arguments of `Rules`.

    For settings that `refusal_of_fields` accepts.
    """
    tag, id_ = tags.field, dedup.field
    return {
        "tag_place": _place(tag),
        "tag_header": tag.name if tag else "",
        "id_place": _place(id_),
        "id_header": id_.name if id_ else "",
        "mask": filter_.wants.bits,
        "hashes": filter_.wants.hashes,
        "separator": tags.split.encode() if tags.split else b"",
    }


def _place(field: Field | None) -> Place:
    return "none" if field is None else cast(Literal["header", "key", "topic"], field.kind)
