"""Names by which the admin endpoint may be asked."""

from __future__ import annotations

from sidecar.ops.admin import host_check


def test_the_name_of_the_configured_address_is_known() -> None:
    """Whoever listens on a name is asked by it, in any case and with the dot of the root."""
    names = host_check(["Node8.Example.com"])
    assert names("node8.example.COM.:9464")
    assert not names("node8.example.org:9464")
