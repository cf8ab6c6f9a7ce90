"""Sorted runs of ids: what is in them is found, nothing else, however they were put together."""

from __future__ import annotations

import numpy as np
import pytest

from sidecar.core.windows import idruns
from sidecar.core.windows.idruns import Keys, SortedRun, add_run, mixed, rising, unmixed


def keys_of(count: int, seed: int = 1) -> Keys:
    """Rising keys of random numbers."""
    numbers = np.random.default_rng(seed).integers(-(1 << 63), (1 << 63) - 1, count)
    return np.unique(mixed(numbers))


def test_a_key_stands_for_one_number() -> None:
    """Mixing loses nothing: the numbers come back, the ends of the range too."""
    numbers = [0, 1, -1, (1 << 63) - 1, -(1 << 63), 1 << 32, 1234567890123456789]
    assert unmixed(mixed(numbers)).tolist() == numbers


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 1_000, 50_000])
def test_a_run_finds_its_keys_and_no_others(count: int) -> None:
    """Whatever its length, a run has the keys that it was made of, once each, and no key of others."""
    keys, others = keys_of(count), keys_of(3_000, seed=2)
    run = SortedRun.of(keys[::2], keys[1::2], keys[::3])
    assert run.keys.tolist() == keys.tolist()
    assert run.contains(keys).all()
    assert run.contains(others).tolist() == np.isin(others, keys).tolist()
    mixture = np.concatenate([others[:5], keys[:5], others[5:9]])
    assert run.contains(mixture).tolist() == [*[False] * 5, *[True] * len(keys[:5]), *[False] * 4]


def test_slices_make_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run merged slice by slice is the run merged at once, but for the size of its index."""
    keys = keys_of(20_000)
    whole = SortedRun.of(keys)
    monkeypatch.setattr(idruns, "SLICE", 700)
    sliced = SortedRun.of(keys[1::2], keys[::2], keys[500:700])
    assert sliced.keys.tolist() == whole.keys.tolist()
    assert sliced.contains(keys).all()
    assert not sliced.contains(keys_of(20_000, seed=3)).any()


def test_numbers_in_a_row_are_spread() -> None:
    """Ids that count up fill index and filter as evenly as random ones."""
    run = SortedRun.of(np.sort(mixed(range(100_000))))
    assert np.diff(run.index.astype(int)).max() < 40
    assert np.unpackbits(run.filter).sum() > 80_000


@pytest.mark.parametrize("count", [1_000, 100_000, 262_144])
def test_an_id_takes_less_than_twelve_bytes(count: int) -> None:
    """8 bytes for the key, the rest for index and filter."""
    assert SortedRun.of(keys_of(count)).nbytes / count < 12


def test_there_are_few_runs() -> None:
    """A thousand additions leave a handful of runs, each key in one of them."""
    runs: list[SortedRun] = []
    for number in range(1_000):
        add_run(runs, SortedRun.of(np.sort(mixed(range(number * 10, number * 10 + 10)))))
    assert len(runs) < 8
    assert sum(map(len, runs)) == 10_000
    assert np.sort(unmixed(np.concatenate([run.keys for run in runs]))).tolist() == list(range(10_000))


def test_a_run_never_outgrows_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are left apart where one of both would have more keys than an index can name."""
    monkeypatch.setattr(idruns, "RUN_MAX", 15)
    runs: list[SortedRun] = []
    for number in range(3):
        add_run(runs, SortedRun.of(np.sort(mixed(range(number * 10, number * 10 + 10)))))
    assert [len(run) for run in runs] == [10, 10, 10]


def test_keys_rise_and_none_comes_twice() -> None:
    """However often a number is there, its key is there once."""
    keys = rising([5, -7, 5, 1 << 62, -7, 5])
    assert sorted(unmixed(keys).tolist()) == [-7, 5, 1 << 62]
    assert (keys[1:] > keys[:-1]).all()
    assert len(rising([])) == 0
