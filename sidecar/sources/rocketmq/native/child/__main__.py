"""The child's program: librocketmq calls back, and the callback waits until the daemon has settled its message.

A callback only ever returns success. With any other answer the library hands the message back to the broker, ignores
whether that worked, and counts it as consumed: with the broker down it would be lost. A message that the daemon does
not settle stays unanswered until the process is killed; the broker then hands it over again to the queue's next owner.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import select
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from sidecar.allocator import allocated_bytes, give_back_large, share_heaps
from sidecar.sources.rocketmq.native.child.frames import FrameKind, Frames, frame, unpack_numbers, write_all
from sidecar.sources.rocketmq.native.child.library import (
    LibraryError,
    Reader,
    ask_before,
    ask_nothing,
    await_answers,
    begin_at_first,
    check_layout,
    keep_packed,
    listen,
    load,
    persist,
    read_ahead,
)
from sidecar.sources.rocketmq.native.child.parking import AHEAD_MAX, EXIT_BROKEN, BytesAhead, ParkedBatches

BEAT_EVERY_S = 1.0
WATCH_EVERY_S = 0.05
"""Interval at which the memory read ahead is measured while messages arrive."""
LEAVE_S = 1.0
"""Time for which leaving waits for the callbacks of settled messages to return."""
RETURN_S = 0.1
"""Time that the library may need to record a returned callback."""
FLUSH_S = 0.3
"""Time after which the library's commits have left the process: it sends them on a separate thread."""
JOINED_BYTES = 16 << 10
"""Frames up to this size are joined into one write."""
PULL_TIMEOUT_MS, PULL_TIMEOUT_PER_QUEUE_MS, PULL_TIMEOUT_MAX_MS = 8_000, 60, 30_000
"""Timeout after which the library asks again. It ignores later answers, and waits as long for a broker that was killed.

Above 133 queues the timeout is longer, because asking costs CPU.
"""
_PR_SET_PDEATHSIG = 1


def subscribe(settings: dict[str, Any]) -> tuple[ParkedBatches, BytesAhead, Any, Any]:
    """Load, test and start the library; returns parking, read-ahead, library, and the objects to keep alive."""
    client = load(Path(settings["folder"]))
    from rocketmq.exceptions import RocketMQException
    from rocketmq.ffi import _CLogLevel, dll

    reader = Reader(dll)
    reader.check()
    ahead = BytesAhead(settings["ahead_bytes_max"], settings["queues"], allocated_bytes)
    kept = keep_packed(dll), ask_before(dll, ahead.may_pull, ahead.came)
    parking = ParkedBatches(reader, settings["held_bytes_max"], settings["first"], settings["threads"] // 4)

    try:
        consumer = client.PushConsumer(settings["group"])
        consumer.set_name_server_address(settings["name_servers"])
        consumer.set_instance_name(settings["instance"])
        consumer.set_thread_count(settings["threads"])
        if settings["access_key"]:
            consumer.set_session_credentials(settings["access_key"], settings["secret_key"], "ALIYUN")
        dll.SetPushConsumerLogLevel(consumer._handle, _CLogLevel.WARN)
        dll.SetPushConsumerLogFileNumAndSize(consumer._handle, settings["log_files"], settings["log_file_mb"])
        check_layout(consumer._handle)
        begin_at_first(dll, consumer._handle)
        timeout_ms = max(PULL_TIMEOUT_MS, min(PULL_TIMEOUT_MAX_MS, PULL_TIMEOUT_PER_QUEUE_MS * settings["queues"]))
        await_answers(consumer._handle, timeout_ms)
        for topic, expression in settings["topics"].items():
            consumer.subscribe(topic, _never, expression)
        listener = listen(dll, consumer._handle, parking.take)
        consumer.start()
    except RocketMQException as error:
        raise RuntimeError(str(error)) from error
    return parking, ahead, dll, (consumer, listener, kept)


def _never(_: Any) -> Any:
    """The callback of the Python package; never called, because `listen` replaces it."""
    os._exit(EXIT_BROKEN)


def main() -> None:
    """Serve the daemon until it sends LEAVE or ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):  # the daemon decides when to end
        signal.signal(number, signal.SIG_IGN)
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the library prints to stdout
    share_heaps()
    give_back_large()
    frames = Frames()
    (_, payload), *_ = _read(frames, None)
    try:
        settings = json.loads(payload)
        parking, ahead, dll, (consumer, *_) = subscribe(settings)
    except (LibraryError, RuntimeError) as error:
        kind = FrameKind.UNUSABLE if isinstance(error, LibraryError) else FrameKind.FAILED
        write_all(output, frame(kind, str(error).encode()))
        os._exit(EXIT_BROKEN)
    parking.out.put(frame(FrameKind.READY))
    threading.Thread(target=_write, args=(output, parking.out), daemon=True).start()
    beat_at_s, is_away, messages_max = time.monotonic() + BEAT_EVERY_S, False, AHEAD_MAX
    watch, watch_at_s = parking.watch, 0.0
    while True:
        for kind, payload in _read(frames, WATCH_EVERY_S if watch.is_on else BEAT_EVERY_S, watch.woken):
            if kind is FrameKind.ACK:
                parking.settle(unpack_numbers(payload))
            elif kind is FrameKind.RESUME:
                parking.reopen()
            elif kind is FrameKind.AWAY:
                is_away = True
                ask_nothing(consumer._handle)
            elif kind is FrameKind.BACK:
                is_away = False
                read_ahead(dll, consumer._handle, messages_max)
            else:
                parking.close()
            if kind is FrameKind.LEAVE:
                _leave(parking, dll, consumer)
        if time.monotonic() >= beat_at_s and parking.out.empty():
            beat_at_s = time.monotonic() + BEAT_EVERY_S
            parking.out.put(frame(FrameKind.BEAT))
            messages_max = ahead.messages_max(watch.largest_bytes)
            watch.end(waits=not parking.is_empty)
            if not watch.is_on:
                ahead.rest()
            if not is_away:
                read_ahead(dll, consumer._handle, messages_max)
        if watch.is_on and time.monotonic() >= watch_at_s:  # it takes 0.8 ms, and acknowledgements come more often
            watch_at_s = time.monotonic() + WATCH_EVERY_S
            ahead.measure()


def _read(frames: Frames, timeout_s: float | None, woken: int = 0) -> list[tuple[FrameKind, bytes]]:
    """Frames from the daemon, none on a time-out or wake-up; ends the process if the daemon is gone."""
    while True:
        ready = select.select({0, woken}, [], [], timeout_s)[0]
        if woken and woken in ready:
            os.read(woken, 1)
        if 0 not in ready:
            return []
        data = os.read(0, 1 << 16)
        if not data:
            os._exit(0)
        if received := list(frames.feed(data)):
            return received


def _write(output: int, frames: queue.SimpleQueue[bytes]) -> None:
    while True:
        joined = [frames.get()]
        with contextlib.suppress(queue.Empty):
            while len(joined) < 64 and len(joined[-1]) < JOINED_BYTES:
                joined.append(frames.get_nowait())
        try:
            write_all(output, b"".join(joined))
        except OSError:
            os._exit(0)
        except BaseException:  # noqa: BLE001  # the daemon starts another child
            traceback.print_exc()
            os._exit(EXIT_BROKEN)
        joined.clear()  # frees the frames before the next wait


def _leave(parking: ParkedBatches, dll: Any, consumer: Any) -> None:
    """End the process: the library's own shutdown would wait for callbacks and hand over everything read ahead."""
    parking.await_returned(LEAVE_S)
    time.sleep(RETURN_S)
    persist(dll, consumer._handle)
    time.sleep(FLUSH_S)
    os._exit(0)


if __name__ == "__main__":
    main()
