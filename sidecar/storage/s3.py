"""A bucket of S3, or of a store that speaks its protocol. Needs boto3; credentials and endpoint are found by it.

An answer may be lost after an object was stored, and boto3 repeats the request. So what it says of a condition may be
about the caller's own object.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
    ResponseStreamingError,
)

from sidecar import threads
from sidecar.errors import ConfigError, CredentialsError, SidecarError, UnavailableError
from sidecar.storage.base import StorageError
from sidecar.storage.objects import ObjectStorage

CONNECT_TIMEOUT_S: Final = 3
READ_TIMEOUT_S: Final = 10
ATTEMPTS_MAX: Final = 3
"""Of a request: a reader ends after them, the daemon's batch is tried again after `retry.backoff`. A stop waits for a
request under way."""
REQUESTS_MAX: Final = 16
"""Limit of requests at once."""
DELETED_MAX: Final = 1_000
"""Keys of a request that deletes."""
_REFUSED: Final = {
    "AccessDenied", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "Forbidden", "403",
    "SignatureDoesNotMatch", "TokenRefreshRequired", "UnauthorizedAccess",
}  # fmt: skip
_ELSEWHERE: Final = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect", "301"}
_BROKEN: Final = (IncompleteReadError, ReadTimeoutError, ResponseStreamingError)
"""The answer began and did not end: boto3 does not repeat these."""


@functools.lru_cache
def s3_storage(bucket: str, prefix: str) -> ObjectStorage:
    """The objects below a prefix, empty for all; one client for each process.

    Raises:
        ConfigError: The settings of boto3 cannot be used.
    """
    url = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS_MAX},
        max_pool_connections=REQUESTS_MAX,
    )
    try:
        client = boto3.session.Session().client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(
            f"{url}: {error}", hint="Correct the settings of boto3: its variables AWS_… or the files in ~/.aws"
        ) from error
    return ObjectStorage(S3Bucket(client, bucket), f"{prefix}/" if prefix else "", url)


class S3Bucket:
    """The objects of a bucket.

    Args:
        client: Boto3's client for S3, which threads may share.
    """

    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    def get(self, key: str) -> bytes | None:
        """See `Bucket`."""
        with self._reported():
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=key)
                try:
                    return bytes(answer["Body"].read())
                except _BROKEN:
                    return bytes(self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read())
            except ClientError as error:
                if _code(error) == "NoSuchKey":
                    return None
                raise

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """See `Bucket`."""
        if len(keys) == 1:
            return [self.get(keys[0])]
        with threads.Pool("s3", min(len(keys), REQUESTS_MAX)) as pool:
            return list(pool.map(self.get, keys))

    def put(self, key: str, data: bytes | memoryview) -> None:
        """See `Bucket`."""
        with self._reported():
            self._client.put_object(Bucket=self._bucket, Key=key, Body=bytes(data))

    def create(self, key: str, data: bytes) -> bool:
        """See `Bucket`."""
        with self._reported():
            try:
                self._client.put_object(Bucket=self._bucket, Key=key, Body=data, IfNoneMatch="*")
            except ClientError as error:
                if _code(error) == "PreconditionFailed":
                    return False
                raise
        return True

    def delete(self, keys: Sequence[str]) -> None:
        """See `Bucket`."""
        with self._reported():
            for start in range(0, len(keys), DELETED_MAX):
                objects = [{"Key": key} for key in keys[start : start + DELETED_MAX]]
                done = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})
                for failed in done.get("Errors", ()):
                    raise ClientError({"Error": failed}, "DeleteObjects")

    def keys(self, prefix: str, after: str = "") -> Iterator[str]:
        """See `Bucket`."""
        for page in self._pages(Prefix=prefix, StartAfter=after):
            yield from (one["Key"] for one in page.get("Contents", ()))

    def folders(self, prefix: str) -> Iterator[str]:
        """See `Bucket`."""
        for page in self._pages(Prefix=prefix, Delimiter="/"):
            yield from (one["Prefix"][len(prefix) : -1] for one in page.get("CommonPrefixes", ()))

    def _pages(self, **what: str) -> Iterator[Any]:
        pages = iter(self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, **what))
        while True:
            with self._reported():
                page = next(pages, None)
            if page is None:
                return
            yield page

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (ClientError, BotoCoreError) as error:
            raise StorageError(self._told(error)) from error

    def _told(self, error: ClientError | BotoCoreError) -> SidecarError:
        """The error for a person."""
        where, at = f"bucket {self._bucket}", self._client.meta.endpoint_url
        if isinstance(error, ClientError):
            return _answered(error, where, at)
        if isinstance(error, NoCredentialsError | PartialCredentialsError | NoAuthTokenError):
            return CredentialsError(
                f"{where}: there are no credentials for it: {error}",
                hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or a role of this host",
            )
        if isinstance(error, EndpointConnectionError | HTTPClientError | IncompleteReadError | ResponseStreamingError):
            return UnavailableError(
                f"{where}: {at} cannot be reached: {error}", hint="If the address is wrong, set AWS_ENDPOINT_URL_S3"
            )
        return ConfigError(f"{where}: {error}", hint="Correct the settings of boto3: AWS_… or the files in ~/.aws")


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _answered(error: ClientError, where: str, at: str) -> SidecarError:
    """The error for a person, of an answer."""
    code, text = _code(error), error.response.get("Error", {}).get("Message") or str(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    if code == "NoSuchBucket":
        return ConfigError(f"{where} does not exist at {at}", hint="Create it, or correct the URL")
    if code == "RequestTimeTooSkewed":
        return UnavailableError(
            f"{where}: the clock of this host is too far from that of {at}", hint="Set the clock: NTP keeps it right"
        )
    if code in _REFUSED:
        return CredentialsError(
            f"{where}: {at} refuses {error.operation_name}: {code}: {text}",
            hint="Check the credentials, and allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket",
        )
    if code in _ELSEWHERE:
        return ConfigError(f"{where} is not in this region: {text}", hint="Set AWS_REGION to that of the bucket")
    if status >= 500 or status in (408, 409, 429) or code in ("SlowDown", "RequestTimeout"):
        return UnavailableError(f"{where}: {at} cannot do {error.operation_name} now: {code}: {text}")
    return ConfigError(
        f"{where}: {at} refuses {error.operation_name}: {code}: {text}", hint="Is there an S3 server at this address?"
    )
