"""Finds and removes members left in the group by a kill or a stop: otherwise their session must time out first.

librdkafka cannot remove a member, so kafka-python's admin client does: it takes 0.02 s, waiting takes 9 s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from sidecar.config.source.kafka import SESSION_TIMEOUT_MS, KafkaSettings

TIMEOUT_MS = 3_000
LEAVE_PATIENCE_S = 1.0
"""Longest time for which a stop may ask whether its member is still there."""
_NOT_YET = {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR}

_PLAIN = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
}


def admin_settings(bootstrap_servers: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """Addresses and credentials of librdkafka's properties under kafka-python's names."""
    settings: dict[str, Any] = {_PLAIN[name]: value for name, value in properties.items() if name in _PLAIN}
    if "security_protocol" in settings:
        settings["security_protocol"] = settings["security_protocol"].upper()
    if properties.get("ssl.endpoint.identification.algorithm", "https") == "none":
        settings["ssl_check_hostname"] = False
    return settings | {
        "bootstrap_servers": [server.split("://")[-1].strip() for server in bootstrap_servers.split(",")],
        "request_timeout_ms": TIMEOUT_MS,
        "bootstrap_timeout_ms": TIMEOUT_MS,
    }


def evict_predecessors(
    settings: KafkaSettings,
    member_id: str,
    find: Callable[[], Sequence[str]],
    tell: Callable[[str, str, Mapping[str, object]], None],
) -> None:
    """Remove a killed predecessor's member, which holds its partitions for 9 s; without an id, `find` looks for it."""
    begun_s, members = time.monotonic(), [member_id] if member_id else []
    try:
        members = members or list(find())
        if members:
            evict(settings, members)
            seconds = round(time.monotonic() - begun_s, 3)
            tell("member.evicted", "info", {"member": ", ".join(members), "seconds": seconds})
    except Exception as error:  # noqa: BLE001
        fields = {"member": ", ".join(members), "reason": str(error), "waits_seconds": SESSION_TIMEOUT_MS / 1000}
        tell("member.not_evicted", "warning", fields)


def leave_behind_nothing(
    settings: KafkaSettings, admin: AdminClient, member_id: str, tell: Callable[[str, str, Mapping[str, object]], None]
) -> None:
    """Remove the own member if it is still in the group after the client was closed.

    The client's LeaveGroup waits behind a pending JoinGroup on its only connection to the coordinator, and is lost with
    that connection: after a stop during a rebalance, the partitions would have no owner until the session times out.
    """

    def find() -> Sequence[str]:
        left = members_of(admin, settings.group_id, LEAVE_PATIENCE_S) if member_id else ()
        return [member.member_id for member in left if member.member_id == member_id]

    evict_predecessors(settings, "", find, tell)


def members_called(admin: AdminClient, group_id: str, client_id: str) -> list[str]:
    """The ids of the group's members that have this client id."""
    members = members_of(admin, group_id, TIMEOUT_MS / 1000)
    return [member.member_id for member in members if member.client_id == client_id]


def members_of(admin: AdminClient, group_id: str, patience_s: float) -> Sequence[Any]:
    """The members of a group; a coordinator that is just being chosen, or loads, is asked again.

    Raises:
        KafkaException: The coordinator does not answer within these seconds, or refuses.
        TimeoutError: The client does not report that.
    """
    deadline_s = time.monotonic() + patience_s
    while True:
        left_s = max(0.1, deadline_s - time.monotonic())
        (asked,) = admin.describe_consumer_groups([group_id], request_timeout=left_s).values()
        try:
            members: Sequence[Any] = asked.result(left_s + 1).members
            return members
        except KafkaException as error:
            if error.args[0].code() not in _NOT_YET or time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)


def evict(settings: KafkaSettings, member_ids: Sequence[str]) -> None:
    """Remove these members from the group; a member that is already gone is not an error."""
    from kafka.admin import KafkaAdminClient, MemberToRemove  # takes 0.2 s, so only if there is a member to evict

    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    client = KafkaAdminClient(**admin_settings(settings.bootstrap_servers, settings.properties))
    try:
        leaving = [MemberToRemove(member_id=member, reason="restarted") for member in member_ids]
        client.remove_group_members(settings.group_id, leaving)
    finally:
        client.close()
