"""What a support bundle leaves out."""

from __future__ import annotations

import pytest

from sidecar.cli.daemon.support_bundle import without_text


@pytest.mark.parametrize(
    "reason, kept",
    [
        ("2 batches fail: HTTP 503: no place for order 7", "2 batches fail: HTTP 503: …"),
        ("the answer is not valid HTTP: illegal header line: 'order 7'", "the answer is not valid HTTP: …"),
        ("timed out after 10 s: no answer came", "timed out after 10 s: no answer came"),
    ],
)
def test_a_reason_without_the_words_of_a_receiver(reason: str, kept: str) -> None:
    """They may quote a message."""
    assert without_text(reason) == kept
