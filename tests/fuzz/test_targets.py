"""The targets of the fuzzer, without it: they run, and what it found stays fixed."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings, strategies as st

from tests.fuzz.targets import SEEDS, TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_what_correct_peers_say_breaks_nothing(name: str) -> None:
    for seed in SEEDS[name]:
        TARGETS[name](seed)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60)
@given(data=st.data())
def test_nor_does_a_change_of_it(name: str, data: st.DataObject) -> None:
    seed = bytearray(data.draw(st.sampled_from(SEEDS[name])))
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(seed)))
        cut = data.draw(st.integers(0, 3))
        seed[place : place + cut] = data.draw(st.binary(max_size=5))
    TARGETS[name](bytes(seed))


@pytest.mark.parametrize("name", ["wire", "element", "value", "event", "records"])
def test_lengths_that_were_only_announced_reserve_nothing(name: str) -> None:
    """Every four bytes of every seed once a huge number, once a negative one."""
    inputs = [
        seed[:place] + huge + seed[place + 4 :]
        for seed in SEEDS[name]
        for place in range(0, min(len(seed), 120), 3)
        for huge in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff")
    ]
    TARGETS[name](inputs[0])
    tracemalloc.start()
    try:
        for each in inputs:
            TARGETS[name](each)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * 1024 * 1024
