"""The plan of a job, of which each task gets a copy."""

from __future__ import annotations

import pickle
from pathlib import Path

from tests.support.spark.tasks import make_settings, plan_of

SIZE_MAX = 2_395
"""Bytes of all settings of this job, as tasks once got them."""
SECRETS = ("a-token-of-the-receiver", "a-password-of-the-broker", "a-header-value")


def test_a_plan_is_small_and_shows_no_secret(tmp_path: Path) -> None:
    """It travels with each query; a log may show it. What a task needs of secrets is in it."""
    properties = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": SECRETS[1]}
    kafka = {"bootstrap_servers": "h:9092", "topics": ["orders"], "group_id": "g", "properties": properties}
    http = {"auth": {"bearer": SECRETS[0]}, "headers": {"X-Key": SECRETS[2]}}
    settings = make_settings(
        "http://h/x", source={"kafka": kafka}, tags={"from": {"header": "t"}, "groups": {"paid": "paid || refunded"}},
        dedup={"by": {"header": "id"}}, sink={"http": http}, spark={"checkpoint": "/c"},
    )  # fmt: skip
    plan = plan_of(settings, Path("/c/sidecar"))
    packed = pickle.dumps(plan)
    assert len(packed) <= SIZE_MAX
    assert pickle.loads(packed) == plan
    assert [secret for secret in SECRETS if secret in repr(plan)] == []
    assert [secret for secret in SECRETS if secret.encode() not in packed] == []
