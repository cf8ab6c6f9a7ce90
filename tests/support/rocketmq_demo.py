"""The RocketMQ node of `sidecar demo --source rocketmq`: a process that outlives the daemon that the demo kills.

Speaks as `sidecar.demo.stage` does.
"""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from sidecar.demo.books import PARTITIONS, TOPIC, stream
from sidecar.demo.stage import remove, serve
from tests.support.jars import rocketmq_jars
from tests.support.rocketmq import Message, RocketMqNode

AT_ONCE = 4_000
"""Messages that are sent together, a batch for each queue."""


def main(folder: str, total: int, removed: str) -> None:
    """Serve commands until the parent is gone.

    Args:
        folder: For the node's files; must not exist.
        total: Messages of the stream.
        removed: Removed when the parent is gone; empty for none.
    """
    rocketmq_jars()
    with RocketMqNode(Path(folder)) as node:
        node.create_topic(TOPIC, PARTITIONS)
        left = stream(total)
        produced = 0

        def produce(count: int) -> dict[str, Any]:
            nonlocal produced
            for at in range(0, count, AT_ONCE):
                queues: dict[int, list[Message]] = defaultdict(list)
                for made in itertools.islice(left, min(AT_ONCE, count - at)):
                    message = Message(made.value.encode(), made.tag, properties={"message-id": made.id})
                    queues[made.partition].append(message)
                for queue, messages in queues.items():
                    node.send_batch(TOPIC, messages, queue=queue)
                    produced += len(messages)
            return {"produced": produced, "failed": 0}

        def offsets(group: str) -> dict[str, Any]:
            return {"dropped": 0, "committed": sum(node.committed(group, TOPIC, PARTITIONS).values())}

        serve(node.name_server, produce, offsets)
    if removed:
        remove(Path(removed))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
