"""Numbers of the remoting protocol that Sidecar uses."""

from __future__ import annotations

from enum import IntEnum


class RequestCode(IntEnum):
    """Codes of requests to a name server or broker, and of requests that a broker sends."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    GET_CONSUMER_LIST_BY_GROUP = 38
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    CHECK_CLIENT_CONFIG = 46
    GET_ROUTEINFO_BY_TOPIC = 105
    RESET_CONSUMER_CLIENT_OFFSET = 220


class Code(IntEnum):
    """Codes of answers."""

    SUCCESS = 0
    NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    GROUP_NOT_EXIST = 26


class SysFlag(IntEnum):
    """Bits of a stored message."""

    COMPRESSED = 0x1
    NEEDS_UNWRAP = 0x1 << 6
    INNER_BATCH = 0x1 << 7
    COMPRESSION_TYPE = 0x7 << 8
    LZ4 = 0x1 << 8
    ZSTD = 0x2 << 8
    BORN_HOST_V6 = 0x1 << 4
    STORE_HOST_V6 = 0x1 << 5
