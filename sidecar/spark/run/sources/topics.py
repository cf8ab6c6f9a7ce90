"""Topic ids in tasks: a topic read under one id is never continued under another."""

from __future__ import annotations

from sidecar.config.source.kafka import KafkaSource
from sidecar.errors import PositionError
from sidecar.spark.ranges.topic_ids import topic_id
from sidecar.spark.run.folder import RunFolder


def claim(kafka: KafkaSource, cluster_id: str, folder: RunFolder, topic: str, *, anew: bool = False) -> str:
    """The id under which this checkpoint reads the topic; `anew` as in `topic_id`.

    Raises:
        PositionError: The topic was recreated since.
        UnavailableError: The broker does not answer.
    """
    now = topic_id(kafka, cluster_id, topic, anew=anew)
    known = folder.claim_topic(topic, now)
    if known != now:
        raise PositionError(
            f"the topic {topic} was deleted and created again: the checkpoint's offsets belong to the old one. Begin "
            "anew with another spark.checkpoint; nothing was skipped silently"
        )
    return known
