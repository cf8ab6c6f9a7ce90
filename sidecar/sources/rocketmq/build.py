"""Creates the RocketMQ source, with the client that the settings name. Decides nothing.

A client is imported only if it is chosen: the gRPC client takes 15 ms, and needs packages that the others do not.
"""

from __future__ import annotations

from sidecar.config.source.rocketmq import RocketMqSettings as Settings
from sidecar.errors import extra
from sidecar.sources.base import Source
from sidecar.sources.context import SourceContext
from sidecar.sources.rocketmq.leased.client import LeasedClient
from sidecar.sources.rocketmq.leased.source import LeasedSource
from sidecar.sources.rocketmq.remoting.source import RocketMqSource


def build(settings: Settings, context: SourceContext) -> Source:
    """Create the source; raises `ConfigError` if its certificates cannot be used, or a package is missing."""
    with extra("rocketmq", "source.rocketmq", "lz4", "zstandard"):  # producers choose how they compress
        import zstandard  # noqa: F401
        from lz4 import frame  # noqa: F401
    if settings.client == "remoting":
        return RocketMqSource(settings, context)
    return LeasedSource(
        _client(settings, context),
        settings.topics,
        settings.group,
        context,
        keep_rows=context.keeps_order and settings.client == "grpc",
        exchange=context.exchange,
    )


def _client(settings: Settings, context: SourceContext) -> LeasedClient:
    if settings.client == "grpc":
        from sidecar.sources.rocketmq.grpc.client import GrpcClient

        in_order_at = context.place if context.keeps_order else ""
        return GrpcClient(settings, context.expression, context.queue_bytes, context.tell, in_order_at)
    from sidecar.sources.rocketmq.native.client import NativeClient

    return NativeClient(settings, context.expression, context.queue_bytes, context.folder / "native", context.tell)
