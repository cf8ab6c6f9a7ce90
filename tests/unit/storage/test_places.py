"""Places of a zone: which URLs there are, what is missing for one, and what an object store says, for a person."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore import exceptions
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from sidecar.errors import ConfigError, CredentialsError, SidecarError, UnavailableError
from sidecar.storage import StorageError, storage_of
from sidecar.storage.s3 import ObjectStorage, S3Bucket

CODES: list[tuple[str, int, type[SidecarError], str]] = [
    ("NoSuchBucket", 404, ConfigError, "bucket zones does not exist at http"),
    ("AccessDenied", 403, CredentialsError, "refuses GetObject: AccessDenied: told"),
    ("InvalidAccessKeyId", 403, CredentialsError, "refuses GetObject"),
    ("SignatureDoesNotMatch", 403, CredentialsError, "refuses GetObject"),
    ("RequestTimeTooSkewed", 403, UnavailableError, "the clock of this host is too far from that of http"),
    ("PermanentRedirect", 301, ConfigError, "is not in this region"),
    ("SlowDown", 503, UnavailableError, "cannot do GetObject now"),
    ("405", 405, ConfigError, "refuses GetObject: 405"),
]


def bucket() -> tuple[S3Bucket, Stubber]:
    """A bucket whose answers are made up."""
    client = boto3.session.Session().client(
        "s3",
        region_name="us-east-1",
        endpoint_url="http://127.0.0.1:1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
    )
    stub = Stubber(client)
    stub.activate()
    return S3Bucket(client, "zones"), stub


@pytest.mark.parametrize(("code", "status", "kind", "told"), CODES)
def test_an_answer_is_told_in_plain_words(code: str, status: int, kind: type[SidecarError], told: str) -> None:
    """Each refusal has the exit code of its kind, tells the bucket, and is an `OSError`, which the daemon retries."""
    made, stub = bucket()
    stub.add_client_error("get_object", code, "told", http_status_code=status)
    with pytest.raises(StorageError, match=told) as caught:
        made.get("key")
    assert type(caught.value.told) is kind
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (exceptions.NoCredentialsError(), CredentialsError, "there are no credentials"),
        (exceptions.EndpointConnectionError(endpoint_url="http://h"), UnavailableError, "cannot be reached"),
        (exceptions.ReadTimeoutError(endpoint_url="http://h"), UnavailableError, "cannot be reached"),
        (exceptions.ParamValidationError(report="x"), ConfigError, "settings of boto3"),
    ],
)
def test_a_request_without_an_answer_is_told(error: Exception, kind: type[SidecarError], told: str) -> None:
    """The same for what boto3 says before an answer comes."""

    class Client:
        def __getattr__(self, name: str) -> Any:
            if name == "meta":
                return bucket()[0]._client.meta
            raise error

    with pytest.raises(StorageError, match=told) as caught:
        S3Bucket(Client(), "zones").put("key", b"")
    assert type(caught.value.told) is kind


def test_a_put_if_absent_tells_whether_there_was_one() -> None:
    """Only a failed condition is an answer; another refusal is an error."""
    made, stub = bucket()
    stub.add_client_error("put_object", "PreconditionFailed", http_status_code=412)
    assert not made.create("key", b"")
    stub.add_client_error("put_object", "ConditionalRequestConflict", http_status_code=409)
    with pytest.raises(StorageError) as caught:
        made.create("key", b"")
    assert isinstance(caught.value.told, UnavailableError)
    stub.add_client_error("get_object", "NoSuchKey", http_status_code=404)
    assert made.get("key") is None


def test_an_object_that_is_not_removed_is_an_error() -> None:
    """A request that removes many is answered with 200, and with errors."""
    made, stub = bucket()
    stub.add_response("delete_objects", {"Errors": [{"Key": "a", "Code": "AccessDenied", "Message": "no"}]})
    with pytest.raises(StorageError, match="refuses DeleteObjects: AccessDenied: no"):
        made.delete(["a"])


@pytest.mark.parametrize("url", ["abfs://c@host/zone", "gs://bucket/zone", "s3a://bucket/zone", "s3://B/zone", "s3://"])
def test_other_places_are_refused(url: str) -> None:
    """What is not tested is refused, by its name."""
    with pytest.raises(ConfigError, match=f"landing zone: {url} is not supported"):
        storage_of(url)


def test_urls_and_paths_are_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place is told as it was written, without the last slash."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for url in ("s3://my-bucket", "s3://my-bucket/a/b"):
        for form in (url, f"{url}/"):
            made = storage_of(form)
            assert isinstance(made, ObjectStorage)
            assert str(made) == url
            assert storage_of(made) is made
    assert str(storage_of("/zone")) == str(storage_of(Path("/zone"))) == "/zone"


def test_wrong_settings_of_boto3_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that does not exist, and an address that is none, are errors of the configuration."""
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigError, match="nobody"):
        storage_of("s3://profile-bucket")
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "no address")
    with pytest.raises(ConfigError, match="no address"):
        storage_of("s3://endpoint-bucket")


def test_without_boto3_the_extra_is_named() -> None:
    """A folder needs no extra, a bucket does."""
    program = """
import sys
sys.modules["boto3"] = None
from sidecar.errors import ConfigError
from sidecar.storage import storage_of
storage_of("/zone")
try:
    storage_of("s3://bucket/zone")
except ConfigError as error:
    print(error, error.hint)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == ("s3://bucket/zone needs boto3, which is not installed pip install consumer-sidecar[s3]\n"), (
        ran.stderr
    )


def test_the_error_of_a_client_is_not_shown_raw() -> None:
    """The raw error is the cause, and the message has no more than its words."""
    made, stub = bucket()
    stub.add_client_error("put_object", "AccessDenied", "no", http_status_code=403)
    with pytest.raises(StorageError) as caught:
        made.put("key", b"")
    assert isinstance(caught.value.__cause__, ClientError)
    assert "allow s3:GetObject" in str(caught.value)
