"""``sidecar msgid``: decodes a RocketMQ message id and, with a broker, fetches the message."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import click

from sidecar.cli import example
from sidecar.cli.shared.output import say, say_json, shown
from sidecar.config.base import address
from sidecar.errors import UnavailableError
from sidecar.sources.rocketmq.wire.frames import ProtocolError, RequestCode
from sidecar.sources.rocketmq.wire.ids import Facts, decode
from sidecar.sources.rocketmq.wire.messages import decode as decode_stored
from sidecar.sources.rocketmq.wire.messages import properties
from sidecar.sources.rocketmq.wire.network import Ask, Network, NoAnswerError, RefusedError


def _id(value: str) -> Facts:
    try:
        return decode(value.strip(), datetime.now().astimezone())
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}") from error


@click.command(epilog=example("sidecar msgid C0A8016400002A9F0000000000000B5C"))
@click.argument("facts", type=_id, metavar="ID")
@click.option("--broker", metavar="HOST:PORT", help="Fetch the message from this broker; for a broker's id.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def msgid(facts: Facts, broker: str | None, as_json: bool) -> None:
    """Decode a RocketMQ message id: which broker stored the message and where, or which producer sent it and when."""
    if broker is not None:
        facts |= _message(facts, broker)
    if as_json:
        say_json(facts)
    else:
        say("\n".join(map(shown, _lines(facts))))


def _message(facts: Facts, broker: str) -> Facts:
    if facts["kind"] != "offset":
        raise click.UsageError("--broker needs a broker's id: a producer's id does not say where the message is stored")
    try:
        broker_address = address(broker, "localhost:10911")
    except ValueError as error:
        raise click.UsageError(f"--broker {error}") from None
    network = Network(None, None, lambda frame: None)
    try:
        ask = Ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(facts["commit_log_offset"])})
        stored = decode_stored(network.call(network.link(str(broker_address)), ask).body)
    except (NoAnswerError, RefusedError, ProtocolError) as error:
        raise UnavailableError(f"the message could not be fetched: {error}", hint=_HINT) from error
    finally:
        network.close()
    message = stored[0]
    return {
        "queue_offset": message.offset,
        "born": _time(message.born_ms),
        "stored": _time(message.stored_ms),
        "reconsume_times": message.reconsume_times,
        "properties": {name: _text(value) for name, value in properties(message.properties)},
        "body": _text(message.body),
    }


def _text(raw: bytes) -> str | dict[str, str]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode("ascii")}


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


_HINT = "check --broker, and whether the message has expired; without --broker, the id is decoded offline"
_KINDS = {
    "offset": "a broker's id (offsetMsgId): where the message is stored",
    "client": "a producer's id (UNIQ_KEY), of 4.x, or of 5.x over remoting",
    "grpc": "a producer's id (UNIQ_KEY), of 5.x over gRPC",
}


def _lines(facts: Facts) -> list[str]:
    return [_KINDS[facts["kind"]], *(f"  {name:<18}{value}" for name, value in facts.items() if name != "kind")]
