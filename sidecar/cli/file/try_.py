"""``sidecar try``: a dry run of sample messages, and the requests as they would be sent; nothing is sent."""

from __future__ import annotations

import base64
from contextlib import closing
from typing import IO, Any

import click

from sidecar.cli import config_option, example
from sidecar.cli.shared.output import say_json
from sidecar.cli.shared.printing import FittedColumn, FittedTable, MessagePlace, show
from sidecar.config.base import HIDDEN
from sidecar.config.loader import load
from sidecar.config.model import Settings
from sidecar.config.sinks import hide_query
from sidecar.inquiries.trial import Decision, SampleRequest, Trial, read_sample

BODY_LINES_MAX = 20


@click.command("try", epilog=example("sidecar try -c sidecar.yaml --sample messages.ndjson"))
@config_option
@click.option(
    "--sample", type=click.File("rb"), required=True, help="One message per line, as in `envelope`; - is stdin."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with whole bodies.")
def try_(path: str, sample: IO[bytes], as_json: bool) -> None:
    """Show what would become of messages: tag, group, duplicate, held; and the requests.

    A request has all rows of one group and partition, as if they were read at once and no limit of `batch` cut them;
    names of parts have another scope. All else is byte for byte as the daemon sends it.

    No broker and no receiver is needed. Nothing is sent, and nothing is remembered.
    """
    settings = load(path)
    with closing(Trial(settings)) as trial:
        decisions = list(trial.decide(list(read_sample(sample, settings))))
        requests = list(trial.requests(decisions))
    secret = _secret_headers(settings)
    if as_json:
        told = {
            "messages": [_decision(each) for each in decisions],
            "requests": [_fields(settings, each, secret) for each in requests],
        }
        say_json(told)
        return
    _print(settings, decisions, requests, secret)


def _secret_headers(settings: Settings) -> set[str]:
    """Names of headers in the configuration, whose values may be secrets."""
    http = settings.sink.http
    if http is None:
        return set()
    own = {http.auth.header.name} if http.auth and http.auth.header else set()
    return {"authorization", *(name.lower() for name in (*http.headers, *own))}


def _headers(request: SampleRequest, secret: set[str]) -> dict[str, str]:
    return {name: HIDDEN if name.lower() in secret else value for name, value in request.headers.items()}


def _decision(each: Decision) -> dict[str, Any]:
    place = {**each.message.tp.fields(), "offset": each.message.offset}
    return {**place, "tags": each.tags, "outcome": each.outcome, "group": each.group, "why": each.why}


def _fields(settings: Settings, request: SampleRequest, secret: set[str]) -> dict[str, Any]:
    assert settings.sink.http is not None
    try:
        body: dict[str, str] = {"body": request.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(request.body).decode()}
    url = hide_query(settings.sink.http.url)
    return {"group": request.group, "method": "POST", "url": url, "headers": _headers(request, secret), **body}


def _print(settings: Settings, decisions: list[Decision], requests: list[SampleRequest], secret: set[str]) -> None:
    tags, why = FittedColumn("tags", prose=True), FittedColumn("why", prose=True)
    cells = ((_place(each), ", ".join(each.tags), each.outcome, each.group or "", each.why) for each in decisions)
    show(FittedTable([FittedColumn("message"), tags, FittedColumn("outcome"), FittedColumn("group"), why], cells))
    http = settings.sink.http
    for request in requests:
        show("")
        if http is not None:
            show(f"POST {hide_query(http.url)}")
        show(*(f"{name}: {value}" for name, value in _headers(request, secret).items()), "")
        if "Content-Encoding" in request.headers:
            show(f"({len(request.body):,} compressed bytes)")
            continue
        lines = request.body.decode("utf-8", "backslashreplace").removesuffix("\n").split("\n")
        show(*lines[:BODY_LINES_MAX])
        if len(lines) > BODY_LINES_MAX:
            show(f"… {len(lines) - BODY_LINES_MAX:,} more rows")


def _place(each: Decision) -> str:
    return str(MessagePlace(each.message.tp, each.message.offset))
