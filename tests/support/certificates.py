"""A certificate authority for one test run, made with openssl, and what it signs, in PEM. No broker comes in."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """Files of a made-up authority.

    Attributes:
        ca: The authority's certificate.
        server: Key and certificate of `localhost` and 127.0.0.1 in one file, as Kafka's PEM key store wants it.
        client_key: Key of the client.
        client: Certificate of the client.
    """

    ca: Path
    server: Path
    client_key: Path
    client: Path


def make_certificates(folder: Path) -> Certificates:
    """Make an authority with a server and a client certificate, all valid for a day."""
    folder.mkdir(parents=True, exist_ok=True)
    _openssl(folder, "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=test-ca -keyout ca.key -out ca.crt")
    _issue(folder, "server", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    _issue(folder, "client", "subjectAltName=DNS:client")
    server = folder / "server.pem"
    server.write_bytes((folder / "server.key").read_bytes() + (folder / "server.crt").read_bytes())
    return Certificates(folder / "ca.crt", server, folder / "client.key", folder / "client.crt")


def _issue(folder: Path, name: str, extension: str) -> None:
    (folder / f"{name}.ext").write_text(extension)
    _openssl(folder, f"req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr")
    signing = f"x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 1 -extfile {name}.ext"
    _openssl(folder, f"{signing} -out {name}.crt")


def _openssl(folder: Path, command: str) -> None:
    done = subprocess.run(["openssl", *command.split()], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"openssl {command}\n{done.stderr}"
