"""A receiver that reads requests and throws them away: as little of the machine as a receiver can take."""

from __future__ import annotations

import argparse
import socket
import threading

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


def serve(connection: socket.socket) -> None:
    """Answer 204 to every request of one connection."""
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)
    pending = b""
    with connection:
        while True:
            while b"\r\n\r\n" not in pending:
                if not (got := connection.recv(65_536)):
                    return
                pending += got
            head, _, rest = pending.partition(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            left = int(fields[b"content-length"]) - len(rest)
            pending = b""
            while left > 0:
                left -= connection.recv_into(view, min(left, len(buffer)))
            connection.sendall(ANSWER)


def main() -> None:
    """Serve on a free port, which is printed, until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
