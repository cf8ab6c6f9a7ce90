"""The page's policy allows what is in it, and nothing else. No browser."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from sidecar.ops.page import POLICY, page
from sidecar.ops.snapshot import StatusSnapshot

NOW = StatusSnapshot("g", "2025-03-01T12:00:00+00:00", "0.1.0", live=True)


@pytest.mark.parametrize("kind", ["style", "script"])
def test_each_style_and_script_of_the_page_is_allowed_by_its_hash(kind: str) -> None:
    """A browser runs none whose SHA-256 the policy does not have."""
    found = re.findall(rf"<{kind}>(.*?)</{kind}>", page(NOW, acts=True).decode(), flags=re.DOTALL)
    (allowed,) = [part for part in POLICY.split("; ") if part.startswith(f"{kind}-src ")]
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in found]
    assert found
    assert [each for each in hashes if f"'sha256-{each}'" not in allowed] == []
    assert all(each.startswith("'sha256-") for each in allowed.split()[1:])
