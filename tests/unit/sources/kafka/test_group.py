"""Settings of the client that removes members of a group."""

from __future__ import annotations

from sidecar.sources.kafka.group import admin_settings


def test_properties_have_the_names_of_the_other_client() -> None:
    """Several addresses, with or without a protocol; what is not set is left to the client."""
    found = admin_settings("PLAINTEXT://a:1, b:2", {"client.id": "x"})
    assert found["bootstrap_servers"] == ["a:1", "b:2"]
    assert not {"security_protocol", "ssl_check_hostname", "client.id"} & found.keys()


def test_security_is_that_of_the_consumer() -> None:
    """Librdkafka takes the protocol in small letters, kafka-python does not."""
    properties = {"security.protocol": "sasl_ssl", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "me"}
    found = admin_settings("a:1", properties | {"ssl.endpoint.identification.algorithm": "none"})
    assert (found["security_protocol"], found["sasl_mechanism"], found["sasl_plain_username"]) == (
        "SASL_SSL",
        "SCRAM-SHA-512",
        "me",
    )
    assert found["ssl_check_hostname"] is False
