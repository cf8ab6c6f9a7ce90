"""``sidecar msgid``: says what a RocketMQ message id tells; with a broker named, also what message it is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click
import orjson

from sidecar.rocketmq.ids import ClientMessageId, MessageId, decode


class _Id(click.ParamType[MessageId]):
    name = "ID"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> MessageId:
        try:
            return decode(value.strip())
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


@click.command()
@click.argument("message_id", type=_Id(), metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def msgid(message_id: MessageId, as_json: bool) -> None:
    """Say what a RocketMQ message id tells: which broker stored the message where, or which producer sent it when."""
    found = _facts(message_id)
    click.echo(orjson.dumps(found).decode() if as_json else "\n".join(_lines(found)))


def _facts(message_id: MessageId) -> Mapping[str, Any]:
    if isinstance(message_id, ClientMessageId):
        return message_id.facts(datetime.now().astimezone())
    return message_id.facts()


_KINDS = {
    "offset": "a broker's id (offsetMsgId): where the message is stored",
    "client": "a producer's id (UNIQ_KEY), of 4.x, or of 5.x over remoting",
    "grpc": "a producer's id (UNIQ_KEY), of 5.x over gRPC",
}


def _lines(found: Mapping[str, Any]) -> list[str]:
    return [_KINDS[found["kind"]], *(f"  {name:<18}{value}" for name, value in found.items() if name != "kind")]
