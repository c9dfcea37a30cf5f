"""Many keys at once are placed as each of them alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import KeyTypeError
from aiomailbox.keygroups.assignment import KeyGroupAssigner, key_group, key_groups_of

LONGS = st.integers(-(2**63), 2**63 - 1)
ASCII = st.text(st.characters(max_codepoint=127), max_size=70)
RUNS: st.SearchStrategy[list[Any]] = st.one_of(
    st.lists(LONGS, max_size=40),
    st.lists(ASCII, max_size=40),
    st.lists(st.text(max_size=8), max_size=20),
    st.lists(st.binary(max_size=8), max_size=20),
    st.lists(st.tuples(ASCII, LONGS), max_size=20),
    st.lists(st.booleans(), max_size=20),
)
GROUPS = st.sampled_from([1, 7, 128, 32_768])


@given(keys=RUNS, most=GROUPS)
def test_a_run_is_placed_as_its_keys_are(keys: list[Any], most: int) -> None:
    assert key_groups_of(keys, most) == [key_group(key, most) for key in keys]


@given(keys=RUNS, entries_max=st.integers(1, 30))
def test_a_small_memory_changes_no_place(keys: list[Any], entries_max: int) -> None:
    assigner = KeyGroupAssigner(4, 128, cache_entries_max=entries_max)
    for _ in range(2):
        assert assigner.key_groups(keys) == [key_group(key, 128) for key in keys]
        assert assigner.channels(keys) == [key_group(k, 128) // 32 for k in keys]
    assert len(assigner._groups) <= entries_max
    assert len(assigner._channels) <= entries_max


@pytest.mark.parametrize("edge", ["\x00", "\x00a", "a\x00", "", "a" * 64, "a" * 65])
def test_zeros_and_long_texts_keep_their_place(edge: str) -> None:
    keys = [edge, "b", "key-1", "\x7f" * 64, "c"]
    assert key_groups_of(keys, 32_768) == [key_group(key, 32_768) for key in keys]


def test_an_int_beyond_64_bits_is_refused_in_a_run_too() -> None:
    for beyond in (2**63, -(2**63) - 1):
        with pytest.raises(KeyTypeError, match="beyond 64 bits"):
            KeyGroupAssigner(1, 128).key_groups([1, 2, 3, 4, beyond])
