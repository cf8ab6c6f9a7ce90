"""The generated stubs of RocketMQ's gRPC protocol, from the package of its Python client, whose code is not run.

Two distributions share the import name `rocketmq`, and the one that is installed later overwrites files of the other.
The stubs are in files that the other distribution does not have, so they are loaded without the package's `__init__`.
"""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from sidecar.errors import ConfigError

DISTRIBUTION, VERSION = "rocketmq-python-client", "5.1.2"
_FOLDER, _MODULES = "rocketmq/grpc_protocol", "rocketmq.grpc_protocol"
_CURE = "pip install 'consumer-sidecar[rocketmq-grpc]'"


class Stubs(NamedTuple):
    """The generated modules, which are untyped."""

    grpc: Any
    values: Any
    """Messages and enumerations of requests."""
    requests: Any
    service: Any
    """The class that sends calls."""


def load() -> Stubs:
    """The stubs; raises `ConfigError` if the package is missing, of another version, or overwritten."""
    folder = _folder()
    before = {name: module for name, module in sys.modules.items() if _is_theirs(name)}
    for name in before:
        del sys.modules[name]
    package = ModuleType("rocketmq")
    package.__path__ = [str(folder.parent)]
    sys.modules["rocketmq"] = package
    try:
        grpc = importlib.import_module("grpc.experimental") and importlib.import_module("grpc")
        values = importlib.import_module(f"{_MODULES}.definition_pb2")
        requests = importlib.import_module(f"{_MODULES}.service_pb2")
        service = importlib.import_module(f"{_MODULES}.service_pb2_grpc").MessagingServiceStub
    except ImportError as error:
        raise ConfigError(f"source.rocketmq.client: grpc cannot load its stubs: {error}", hint=_CURE) from error
    finally:
        for name in [name for name in sys.modules if _is_theirs(name)]:
            del sys.modules[name]
        sys.modules.update(before)
    return Stubs(grpc, values, requests, service)


def _is_theirs(name: str) -> bool:
    return name == "rocketmq" or name.startswith("rocketmq.")


def _folder() -> Path:
    needs = f"source.rocketmq.client: grpc needs {DISTRIBUTION} {VERSION}"
    try:
        installed = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise ConfigError(f"{needs}, which is not installed{_others()}", hint=_CURE) from None
    if installed.version != VERSION:
        raise ConfigError(f"{needs}, and {installed.version} is installed", hint=_CURE)
    folder = Path(str(installed.locate_file(_FOLDER)))
    if not (folder / "service_pb2.py").is_file():
        cure = f"pip install --force-reinstall --no-deps {DISTRIBUTION}=={VERSION}"
        raise ConfigError(f"{needs}, whose files are gone{_others()}", hint=cure)
    return folder


def _others() -> str:
    """Other distributions with the same import name."""
    names = sorted(set(metadata.packages_distributions().get("rocketmq", [])) - {DISTRIBUTION})
    return f"; {' and '.join(names)}, which is, is for other clients" if names else ""
