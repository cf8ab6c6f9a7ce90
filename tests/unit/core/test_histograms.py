"""Values in buckets."""

from __future__ import annotations

from sidecar.core.books import Histogram


def test_a_value_counts_in_the_first_bucket_that_it_fits() -> None:
    """A value that equals a bound belongs to it, and one beyond all has a bucket of its own."""
    histogram = Histogram((1.0, 10.0))
    for value, times in ((0.5, 1), (1.0, 2), (10.0, 3), (11.0, 4)):
        histogram.observe(value, times)
    assert histogram.read() == ((1.0, 10.0), (3, 3, 4), 0.5 + 2.0 + 30.0 + 44.0)
