"""The per-task memory of where keys live: right, bounded, and strict about types."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import InvalidArgumentError, KeyTypeError
from aiomailbox.keygroups.assignment import KeyGroupAssigner, key_group, operator_index

KEYS = st.one_of(
    st.lists(st.text(max_size=4)),
    st.lists(st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.booleans()),
    st.lists(st.binary(max_size=3)),
    st.lists(st.tuples(st.text(max_size=2), st.tuples(st.integers(0, 5)))),
)


@given(KEYS, st.integers(1, 4))
def test_a_run_and_single_keys_are_placed_as_the_pure_functions_say(
    keys: list[Any], cache_entries_max: int
) -> None:
    assigner = KeyGroupAssigner(3, 128, cache_entries_max=cache_entries_max)
    groups = [key_group(key, 128) for key in keys]
    assert assigner.key_groups(keys) == groups
    assert [assigner.key_group_of(key) for key in keys] == groups
    channels = [operator_index(group, 3, 128) for group in groups]
    assert assigner.channels(keys) == channels


def test_the_cache_never_holds_more_than_its_bound() -> None:
    assigner = KeyGroupAssigner(2, 128, cache_entries_max=10)
    for start in range(0, 1000, 7):
        assigner.channels(list(range(start, start + 7)))
        assert len(assigner._channels) <= 10


@pytest.mark.parametrize(
    ("first", "other", "names"),
    [
        (1, 1.0, "float.*int"),
        (1, True, "bool.*int"),
        ("a", b"a", "bytes.*str"),
        ((1, "a"), (1.0, "a"), r"tuple\[float, str\].*tuple\[int, str\]"),
        (("a",), ("a", "b"), r"tuple\[str, str\].*tuple\[str\]"),
        ((("a", 1),), (("a", True),), r"tuple\[tuple\[str, bool\]\]"),
    ],
)
def test_the_first_key_fixes_the_type_and_others_are_refused_naming_both(
    first: Any, other: Any, names: str
) -> None:
    assigner = KeyGroupAssigner(2, 128)
    assigner.channels([first])
    with pytest.raises(KeyTypeError, match=names):
        assigner.channels([other])
    with pytest.raises(KeyTypeError, match=names):
        assigner.key_group_of(other)
    with pytest.raises(KeyTypeError, match=names):
        assigner.channels([first, other])
    with pytest.raises(KeyTypeError, match=names):
        assigner.channels([other])


def test_a_refused_first_key_does_not_fix_the_type() -> None:
    assigner = KeyGroupAssigner(2, 128)
    for refused in (None, [1], {}, 2**64):
        with pytest.raises(KeyTypeError):
            assigner.channels([refused])
    assert assigner.key_type is None
    assigner.channels(["a"])
    assert assigner.key_type == "str"


def test_a_list_inside_a_run_of_strings_is_a_type_error_that_teaches() -> None:
    with pytest.raises(KeyTypeError, match="list"):
        KeyGroupAssigner(2, 128).channels(["a", ["b"]])


def test_an_int_beyond_64_bits_is_refused_after_the_type_is_fixed() -> None:
    assigner = KeyGroupAssigner(2, 128)
    assigner.channels([1])
    with pytest.raises(KeyTypeError, match="beyond 64 bits"):
        assigner.channels([2, 2**63])


def test_both_zeros_are_one_key_whichever_comes_first() -> None:
    one, other = KeyGroupAssigner(8, 128), KeyGroupAssigner(8, 128)
    assert one.key_groups([0.0, -0.0]) == other.key_groups([-0.0, 0.0])
    nested, mirrored = KeyGroupAssigner(8, 128), KeyGroupAssigner(8, 128)
    assert nested.channels([(0.0,)]) == mirrored.channels([(-0.0,)])


@pytest.mark.parametrize("key", [float("nan"), ("a", float("nan"))])
def test_nan_is_refused_since_its_state_could_not_be_found_again(key: Any) -> None:
    assigner = KeyGroupAssigner(2, 128)
    with pytest.raises(KeyTypeError, match="NaN"):
        assigner.channels([key])
    with pytest.raises(KeyTypeError, match="NaN"):
        assigner.key_group_of(key)


def test_an_empty_run_has_no_channels_and_fixes_nothing() -> None:
    assigner = KeyGroupAssigner(2, 128)
    assert assigner.channels([]) == []
    assert assigner.key_type is None


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="parallelism"):
        KeyGroupAssigner(200, 128)
    with pytest.raises(InvalidArgumentError, match="cache_entries_max"):
        KeyGroupAssigner(2, 128, cache_entries_max=0)
