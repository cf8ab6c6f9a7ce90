"""How much metadata the brokers take beside an offset. Asks, and decides nothing else."""

from __future__ import annotations

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from sidecar.core.room import METADATA_CHARACTERS, METADATA_CHARACTERS_MIN
from sidecar.errors import UnavailableError
from sidecar.sources.base import Tell

_SETTING = "offset.metadata.max.bytes"
_TIMEOUT_S = 5.0


def metadata_characters(admin: AdminClient, tell: Tell) -> int:
    """The least that any broker takes, at most the default; the default where the account may not ask.

    Raises:
        UnavailableError: It is too little to work with.
    """
    least = min([METADATA_CHARACTERS, *_allowed(admin)])
    if least < METADATA_CHARACTERS_MIN:
        raise UnavailableError(
            f"a broker takes {least} bytes of metadata beside an offset ({_SETTING}); "
            f"{METADATA_CHARACTERS_MIN} are needed, {METADATA_CHARACTERS} are Kafka's default",
            hint=f"raise {_SETTING} on all brokers and start again",
        )
    if least < METADATA_CHARACTERS:
        tell("metadata.limited", "warning", {"bytes": least, "default": METADATA_CHARACTERS})
    return least


def _allowed(admin: AdminClient) -> list[int]:
    try:
        brokers = admin.list_topics(timeout=_TIMEOUT_S).brokers
        asked = [ConfigResource(ResourceType.BROKER, str(number)) for number in brokers]
        found = [future.result() for future in admin.describe_configs(asked, request_timeout=_TIMEOUT_S).values()]
        return [int(entries[_SETTING].value) for entries in found if _SETTING in entries]
    except KafkaException:  # not every account may ask, nor does every broker answer
        return []
