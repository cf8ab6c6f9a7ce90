"""The names by which requests may ask for the admin endpoint.

A page of a foreign site can have its own name resolved to an address in the reader's network (DNS rebinding), and then
reads what is there as its own. Nothing but `Host` gives it away: browsers send no `Origin` with such a GET, and
`Sec-Fetch-Site` only with TLS or to localhost.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address

PRIVATE = ("localhost", "svc", "cluster.local", "internal")
"""Domains in which no foreign site can have a name: those of loopback, Kubernetes and private networks."""
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d*)?")


class HostNames:
    """What `Host` may be: an IP address, a name without a dot or in a private domain, this host's name, and others."""

    def __init__(self, others: Iterable[str]) -> None:
        self._others = {name.lower().rstrip(".") for name in (*others, socket.gethostname())}

    def has(self, host: str) -> bool:
        """Whether a header `Host` names this server; no header does too, since browsers always send one."""
        if not host:
            return True
        match = _HOST.fullmatch(host.lower())
        if match is None:
            return False
        name = (match[1] or match[2]).rstrip(".")
        return name in self._others or "." not in name or name.endswith(_SUFFIXES) or _is_address(name)


_SUFFIXES = tuple(f".{domain}" for domain in PRIVATE)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
