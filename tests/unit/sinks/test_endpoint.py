"""Where to and as whom: what can be configured, and that no secret is ever shown."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from sidecar.errors import ConfigError
from sidecar.sinks.endpoint import Endpoint, basic, bearer
from sidecar.tls import Tls


@pytest.mark.parametrize(
    "url, host, port, uri",
    [
        ("http://localhost:8080/ingest", "localhost", 8080, "/ingest"),
        ("http://localhost", "localhost", None, "/"),
        ("https://[::1]:8443/a?b=c", "::1", 8443, "/a?b=c"),
        ("http://host/a b\u00fc#gone", "host", None, "/a%20b%C3%BC"),
        ("http://host/a|b%20c?d=[1]", "host", None, "/a%7Cb%20c?d=%5B1%5D"),
        ("http://[fe80::1%25eth0]/", "fe80::1%eth0", None, "/"),
    ],
)
def test_an_address_is_taken_apart(url: str, host: str, port: int | None, uri: str) -> None:
    """Host, port and path are what goes into connection and request line, escaped where needed."""
    endpoint = Endpoint(url)
    assert (endpoint.host, endpoint.port, endpoint.uri) == (host, port, uri)
    assert (endpoint.tls is not None) == url.startswith("https")


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost:80", "ftp://host/", "http://", "http://host:x/", "http://u:secret@host/"),
        *("http://b\u00fccher.example/", "http://host /", "http://host/a\nb", "http://host/\0"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str) -> None:
    """The error names the setting and a cure, and does not repeat credentials."""
    with pytest.raises(ConfigError, match=r"sink\.http\.url") as caught:
        Endpoint(url)
    assert caught.value.hint
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["Content-Length", "idempotency-key", "Sidecar-Anything", "TE", "Expect"])
def test_headers_of_the_contract_are_not_to_be_set(name: str) -> None:
    """What a request's framing or the contract needs is refused by name."""
    with pytest.raises(ConfigError, match=name):
        Endpoint("http://h", headers={name: "1"})


@pytest.mark.parametrize("name, value", [("a b", "x"), ("", "x"), ("a:", "x"), ("ok", "a\r\nb: c"), ("ok", "\u20ac")])
def test_headers_that_http_cannot_carry_are_refused(name: str, value: str) -> None:
    """A line end or a character outside Latin-1 never gets into a request, and the value is not shown."""
    with pytest.raises(ConfigError) as caught:
        Endpoint("http://h", headers={name: value})
    assert value not in str(caught.value) or value == "x"


def test_the_user_agent_is_ours_unless_set() -> None:
    """Who wants another User-Agent sets it, in any case of letters."""
    assert Endpoint("http://h").headers["User-Agent"].startswith("consumer-sidecar/")
    assert Endpoint("http://h", headers={"user-agent": "x"}).headers == {"user-agent": "x"}


def test_credentials_become_headers() -> None:
    """Basic is in UTF-8 as RFC 7617 has it, bearer as RFC 6750 has it."""
    assert basic("Aladdin", "open sesame") == ("Authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")
    assert basic("u", "\u00e4") == ("Authorization", "Basic dTrDpA==")
    assert bearer("abc") == ("Authorization", "Bearer abc")


def test_secrets_are_redacted_and_not_in_the_repr() -> None:
    """Password, token and header values are taken out of what a receiver repeats."""
    for credentials in (basic("user", "hunter2!"), bearer("hunter2!"), ("X-Key", "hunter2!")):
        endpoint = Endpoint("http://h", headers={"X-Tenant": "tenant-77"}, credentials=credentials)
        text = endpoint.redacted(f"got {credentials[1]} and hunter2! of tenant-77".encode())
        assert text.count(b"***") == 3
        assert b"hunter2" not in text + repr(endpoint).encode()


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """A missing or damaged certificate file is an error that names the file."""
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nno\n")
    for tls in (Tls(ca=tmp_path / "gone.pem"), Tls(ca=damaged), Tls(cert=damaged)):
        with pytest.raises(ConfigError, match=r"(gone|damaged)\.pem"):
            Endpoint("https://h", tls=tls)


def test_certificates_are_checked_unless_told_not_to() -> None:
    """Certificate and host name are verified, TLS 1.2 at least, and only `verify: false` turns it off."""
    strict = Endpoint("https://h").tls
    assert strict is not None
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert strict.minimum_version == ssl.TLSVersion.TLSv1_2
    lax = Endpoint("https://h", tls=Tls(verify=False)).tls
    assert lax is not None
    assert (lax.verify_mode, lax.check_hostname) == (ssl.CERT_NONE, False)
