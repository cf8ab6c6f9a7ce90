"""Trusted certificates and own identity of connections, from the settings."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from sidecar.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Tls:
    """Trusted certificates and own identity; paths of PEM files."""

    ca: Path | None = None
    """None trusts the system's certificates."""
    cert: Path | None = None
    key: Path | None = None
    verify: bool = True


def client_context(tls: Tls, section: str) -> ssl.SSLContext:
    """The context for outgoing connections.

    Args:
        section: The connections' section in the file.

    Raises:
        ConfigError: A file is missing, or is no certificate or key.
    """
    files = [path for path in (tls.ca, tls.cert, tls.key) if path]
    for path in files:
        if not path.is_file():
            raise ConfigError(f"the certificate file {path} does not exist", hint=f"Check {section}")
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert:
            # Without a password function OpenSSL would ask for one on the terminal.
            context.load_cert_chain(tls.cert, tls.key, password=lambda: "")
    except (OSError, ValueError) as error:
        names = ", ".join(map(str, files))
        raise ConfigError(f"cannot use the certificates {names}: {error}", hint="They must be PEM files") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
