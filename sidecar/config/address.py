"""Addresses, `HOST:PORT`: parsing, and the errors for other texts. Resolves no name."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

PORT_MAX = 65_535
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


class Address(NamedTuple):
    """A host, without brackets, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(value: Any, example: str, also: str = "", *, port_min: int = 1) -> Address:
    """Read an address; an IPv6 address has brackets.

    Args:
        value: The value in the file.
        example: An address for the message.
        also: Other values that the key takes, for the message.
        port_min: 0 if any free port may be requested.

    Raises:
        ValueError: It is no address, or the port number is invalid.
    """
    match = _ADDRESS.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"needs HOST:PORT, such as {example}{also}")
    if not port_min <= int(match[2]) <= PORT_MAX:
        raise ValueError(f"has a port that is not from {port_min} to {PORT_MAX}")
    return Address(match[1].strip("[]"), int(match[2]))
