"""A bucket of S3, or of a store that speaks its protocol. Needs boto3; credentials and endpoint are found by it.

An answer may be lost after an object was stored, and boto3 repeats the request. So a failed condition may be due to the
caller's own object.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

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
from sidecar.errors import ConfigError, CredentialsError, SidecarError, UnavailableError, ZoneError
from sidecar.storage.base import StorageError

AHEAD_MAX: Final = 256
"""Limit of lines that are read ahead."""
MARKER: Final = "lock"
"""Shows that a writer began here, and that the store never overwrites it."""


class Bucket(Protocol):
    """The objects of a store that a reader finds as soon as they are stored. Every call may raise `OSError`.

    After a failure an object may be stored, also later.
    """

    def get(self, key: str) -> bytes | None:
        """The content of an object; None if it is missing."""
        ...

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """The contents of several objects, in the order of the keys."""
        ...

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store or replace an object."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Store an object; return False if one exists. It may be this call's own, if an answer was lost."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Remove the objects that exist."""
        ...

    def keys(self, prefix: str, after: str = "") -> Iterator[str]:
        """The keys with this prefix, in order, from the one after `after` on."""
        ...

    def folders(self, prefix: str) -> Iterator[str]:
        """The names after the prefix, up to the next slash, in order."""
        ...


class ObjectStorage:
    """A `Storage` of the objects below a prefix, which is empty or ends with a slash."""

    def __init__(self, bucket: Bucket, prefix: str, url: str) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._url = url

    def __str__(self) -> str:
        return self._url

    def read(self, name: str) -> bytes | None:
        return self._bucket.get(self._prefix + name)

    def put(self, name: str, data: bytes | memoryview) -> None:
        self._bucket.put(self._prefix + name, data)

    def new_name(self, name: str) -> str:
        """A name with a random part: a put that failed may be stored later."""
        stem, dot, ending = name.rpartition(".")
        return f"{stem}-{os.urandom(4).hex()}{dot}{ending}"

    def remove(self, names: Iterable[str]) -> None:
        self._bucket.delete([self._prefix + name for name in names])

    def sync(self, name: str) -> None:
        """A stored object is durable."""

    def files(self, folder: str) -> list[str]:
        return [key[len(self._prefix) :] for key in self._bucket.keys(f"{self._prefix}{folder}/")]

    def folders(self, folder: str) -> list[str]:
        return list(self._bucket.folders(f"{self._prefix}{folder}/"))

    def has(self, folder: str) -> bool:
        prefix = f"{self._prefix}{folder}/" if folder else self._prefix
        return next(self._bucket.keys(prefix), None) is not None

    def lines(self, folder: str) -> ObjectLog:
        return ObjectLog(self._bucket, self._prefix, folder)


class ObjectLog:
    """A `LineLog` with one object for each line, named by its number: a segment has one line.

    No lock is needed: of two processes that append as the same writer, the second to store a number learns it. A
    reader asks for the next number, and for more at once if there are many.
    """

    segment_lines = 1
    remembered = 1_024

    def __init__(self, bucket: Bucket, prefix: str, folder: str) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._folder = folder
        self._ahead: dict[int, bytes] = {}
        self._width = 1

    def lock(self) -> bool:
        """Always True: the condition of each put keeps two writers apart."""
        if self._bucket.create(self._marker, b"{}") and self._bucket.create(self._marker, b"{}"):
            raise ConfigError(
                "landing zone: the object store replaces an object that exists, though it was asked not to",
                hint="Use a store that obeys If-None-Match in PutObject, as AWS S3 does",
            )
        return True

    def unlock(self) -> None: ...

    @property
    def _marker(self) -> str:
        return f"{self._prefix}{self._folder}/{MARKER}"

    def segments(self, first: int) -> list[int]:
        after = self._key(first - 1) if first else ""
        keys = self._bucket.keys(f"{self._prefix}{self._folder}/", after)
        found = (re.fullmatch(r".*/(\d+)\.line", key) for key in keys)
        return [int(match[1]) for match in found if match]

    def name(self, seq: int) -> str:
        return f"{self._folder}/{seq:012d}.line"

    def _key(self, seq: int) -> str:
        return self._prefix + self.name(seq)

    def exists(self, first: int) -> bool:
        return self._bucket.get(self._key(first)) is not None

    def read(self, seq: int, at: int = 0) -> bytes | None:
        if seq not in self._ahead:
            self._ahead = dict(self._fetch(seq))
        line = self._ahead.pop(seq, None)
        return None if line is None else line[at:]

    def _fetch(self, seq: int) -> Iterator[tuple[int, bytes]]:
        """The line, and those after it that were read ahead, up to the first that is missing."""
        numbers = range(seq, seq + self._width)
        self._width = min(self._width * 2, AHEAD_MAX)
        lines = self._bucket.get_all([self._key(number) for number in numbers])
        for number, line in zip(numbers, lines, strict=True):
            if line is None:
                self._width = 1
                return
            yield number, line

    def head(self, first: int) -> int:
        return max(self.segments(first), default=first - 1)

    def remove(self, firsts: Iterable[int]) -> None:
        self._bucket.delete([self._key(first) for first in firsts])

    def open(self, first: int) -> ObjectLine:
        return ObjectLine(self._bucket, self._key(first), self._marker)


class ObjectLine:
    """A `Lines` of one line, which is an object.

    A put that failed may still be stored, even after its process has ended. So the line is never given up: `settle`
    stores the same bytes again. Another process that finds the data of the line stores the same bytes too.

    Args:
        marker: Key of an object that exists as long as the zone.
    """

    def __init__(self, bucket: Bucket, key: str, marker: str) -> None:
        self.end = 0
        self._bucket = bucket
        self._key = key
        self._marker = marker
        self._unsure: bytes | None = None

    def append(self, line: bytes) -> None:
        self._unsure = line + b"\n"
        self.settle()

    def settle(self) -> bool:
        data = self._unsure
        if data is None:
            return False
        if not self._bucket.create(self._key, data) and self._bucket.get(self._key) != data:
            raise ZoneError(
                f"landing zone: another process has written {self._key} as the same writer",
                hint="Give each sidecar a state.dir of its own, which has the writer's name, and restart this process",
            )
        self._unsure, self.end = None, len(data)
        return True

    def cut(self, _end: int | None = None, /) -> None:
        """Remove an incomplete line; a complete object is never cut."""
        self._bucket.delete([self._key])

    def mend(self, _at: int, line: bytes, /) -> None:
        self._bucket.put(self._key, line + b"\n")

    def in_place(self) -> bool:
        return self._bucket.get(self._marker) is not None

    def close(self) -> None: ...


CONNECT_TIMEOUT_S: Final = 3
READ_TIMEOUT_S: Final = 10
ATTEMPTS_MAX: Final = 3
"""Attempts at a request: then a reader ends, and the daemon repeats its batch after `retry.backoff`. A stop waits for a
request under way."""
REQUESTS_MAX: Final = 16
"""Limit of concurrent requests."""
DELETED_MAX: Final = 1_000
"""Limit of keys in a request that deletes."""
_REFUSED: Final = {
    "AccessDenied", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "Forbidden", "403",
    "SignatureDoesNotMatch", "TokenRefreshRequired", "UnauthorizedAccess",
}  # fmt: skip
_ELSEWHERE: Final = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect", "301"}
_BROKEN: Final = (IncompleteReadError, ReadTimeoutError, ResponseStreamingError)
"""Errors of an answer that began and did not end: boto3 does not repeat these."""


@functools.lru_cache
def s3_storage(bucket: str, prefix: str) -> ObjectStorage:
    """The objects below a prefix, empty for all; one client for each process."""
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
    """A `Bucket` of S3, by Boto3's client, which threads may share."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    def get(self, key: str) -> bytes | None:
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
        if len(keys) == 1:
            return [self.get(keys[0])]
        with threads.Pool("s3", min(len(keys), REQUESTS_MAX)) as pool:
            return list(pool.map(self.get, keys))

    def put(self, key: str, data: bytes | memoryview) -> None:
        with self._reported():
            self._client.put_object(Bucket=self._bucket, Key=key, Body=bytes(data))

    def create(self, key: str, data: bytes) -> bool:
        with self._reported():
            try:
                self._client.put_object(Bucket=self._bucket, Key=key, Body=data, IfNoneMatch="*")
            except ClientError as error:
                if _code(error) == "PreconditionFailed":
                    return False
                raise
        return True

    def delete(self, keys: Sequence[str]) -> None:
        with self._reported():
            for start in range(0, len(keys), DELETED_MAX):
                objects = [{"Key": key} for key in keys[start : start + DELETED_MAX]]
                done = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})
                for failed in done.get("Errors", ()):
                    raise ClientError({"Error": failed}, "DeleteObjects")

    def keys(self, prefix: str, after: str = "") -> Iterator[str]:
        for page in self._pages(Prefix=prefix, StartAfter=after):
            yield from (one["Key"] for one in page.get("Contents", ()))

    def folders(self, prefix: str) -> Iterator[str]:
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
        """The error to show to the user."""
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
    """The error to show to the user, from an answer of the store."""
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
