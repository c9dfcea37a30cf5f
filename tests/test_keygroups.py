"""Where keys live: pinned values, and the laws of ranges and rescaling."""

from __future__ import annotations

import struct
from enum import IntEnum

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import InvalidArgumentError, KeyTypeError
from aiomailbox.keygroups.assignment import (
    KeyGroupRange,
    default_max_parallelism,
    hash_code,
    int32_hash_code,
    key_group,
    key_group_range,
    murmur_hash,
    operator_index,
)


class Color(IntEnum):
    RED = 1


def _folded(terms: list[int], seed: int) -> int:
    total = seed
    for term in terms:
        total = (31 * total + term) & 0xFFFFFFFF
    return total - 2**32 if total >= 2**31 else total


def test_murmur_hash_and_key_groups_have_flinks_values() -> None:
    """NET-90, SEM-128."""
    codes = [0, 1, 2, 42, -1, 2**31]
    expected = [593689054, 68075478, 1085422463, 1134849565, 1982413648, 1718298732]
    assert [murmur_hash(code) for code in codes] == expected
    assert [code % 128 for code in expected] == [94, 86, 127, 29, 80, 108]


def test_strings_are_in_flinks_key_groups() -> None:
    """SEM-129."""
    keys = ["a", "b", "key1", "key2", "hello", ""]
    assert [key_group(key, 128) for key in keys] == [81, 22, 41, 27, 35, 94]


@given(st.text(st.characters(exclude_categories=[]), max_size=200))
def test_a_string_hashes_over_its_utf_16_code_units(key: str) -> None:
    raw = key.encode("utf-16-be", "surrogatepass")
    units = list(struct.unpack(f">{len(raw) // 2}H", raw))
    assert hash_code(key) == _folded(units, 0)


@given(st.binary(max_size=200))
def test_bytes_hash_as_signed_bytes_from_one(key: bytes) -> None:
    assert hash_code(key) == _folded([b - 256 if b > 127 else b for b in key], 1)


@given(st.tuples(st.text(), st.integers(-(2**63), 2**63 - 1), st.booleans()))
def test_a_tuple_hashes_like_a_flink_tuple_of_its_elements(
    key: tuple[str, int, bool],
) -> None:
    assert hash_code(key) == _folded([hash_code(element) for element in key], 0)


def test_equal_values_of_different_types_have_hashes_of_their_own() -> None:
    assert (hash_code(1), hash_code(1.0), hash_code(True)) == (1, 1072693248, 1231)
    assert hash_code(False) == 1237


def test_every_nan_hashes_like_javas_canonical_one() -> None:
    odd = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
    assert hash_code(float("nan")) == hash_code(odd) == 2146959360


def test_a_negative_int_is_a_long_and_an_integer_only_on_request() -> None:
    assert hash_code(-1) == 0
    assert int32_hash_code(-1) == -1
    with pytest.raises(KeyTypeError, match="32 bits"):
        int32_hash_code(2**31)


@pytest.mark.parametrize("key", [2**63, -(2**63) - 1, (1, 2**64)])
def test_an_int_beyond_64_bits_is_refused(key: object) -> None:
    with pytest.raises(KeyTypeError, match="beyond 64 bits"):
        hash_code(key)


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        (None, "Filter it out"),
        ([1], r"tuple\(key\)"),
        (bytearray(b"x"), r"bytes\(key\)"),
        ({"a": 1}, "str, int, float, bool, bytes"),
        (Color.RED, r"int\(key\)"),
        (("a", None), "Filter it out"),
    ],
)
def test_a_key_that_has_no_place_is_refused_with_advice(
    key: object, advice: str
) -> None:
    with pytest.raises(KeyTypeError, match=advice):
        key_group(key, 128)


@given(st.integers(1, 300), st.data())
def test_ranges_partition_the_key_groups_and_agree_with_owners(
    max_parallelism: int, data: st.DataObject
) -> None:
    """NET-90, SEM-132."""
    parallelism = data.draw(st.integers(1, max_parallelism))
    owners = []
    for index in range(parallelism):
        owned = key_group_range(max_parallelism, parallelism, index).key_groups
        owners += [index] * len(owned)
    groups = range(max_parallelism)
    assert owners == [operator_index(g, parallelism, max_parallelism) for g in groups]


def test_owners_have_flinks_values() -> None:
    """SEM-130."""
    owners = [
        [operator_index(group, parallelism, 128) for parallelism in (1, 2, 3, 4)]
        for group in (81, 41)
    ]
    assert owners == [[0, 1, 1, 2], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("max_parallelism", "ends"),
    [
        (128, [42, 85, 127]),
        (10, [3, 6, 9]),
        (10, [2, 4, 7, 9]),
        (7, [0, 1, 2, 3, 4, 5, 6]),
        (32768, [6553, 13107, 19660, 26214, 32767]),
    ],
)
def test_ranges_end_where_flinks_do(max_parallelism: int, ends: list[int]) -> None:
    """SEM-131."""
    found = [
        key_group_range(max_parallelism, len(ends), index) for index in range(len(ends))
    ]
    starts = [0, *(end + 1 for end in ends[:-1])]
    assert found == [KeyGroupRange(*each) for each in zip(starts, ends, strict=True)]


def test_from_two_to_three_subtasks_the_middle_one_reads_both() -> None:
    """SEM-134."""
    old, new = (
        [key_group_range(128, count, index) for index in range(count)]
        for count in (2, 3)
    )
    read = [
        [index for index, theirs in enumerate(old) if mine.intersection(theirs)]
        for mine in new
    ]
    assert read == [[0], [0, 1], [1]]


def test_ranges_have_flinks_values() -> None:
    assert key_group_range(10, 4, 2) == KeyGroupRange(5, 7)
    assert key_group_range(32768, 5, 4) == KeyGroupRange(26215, 32767)


@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [
        ((128, 0, 0), "parallelism"),
        ((128, 129, 0), "parallelism"),
        ((32769, 2, 0), "max_parallelism"),
        ((128, 2, -1), "index"),
    ],
)
def test_a_range_of_impossible_arguments_is_refused(
    arguments: tuple[int, int, int], parameter: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        key_group_range(*arguments)
    assert caught.value.parameter == parameter


def test_the_default_max_parallelism_leaves_room_to_grow() -> None:
    """SEM-133."""
    wishes = [1, 85, 86, 100, 170, 171, 30000]
    expected = [128, 128, 256, 256, 256, 256, 32768]
    assert [default_max_parallelism(wish) for wish in wishes] == expected
    with pytest.raises(InvalidArgumentError, match="parallelism"):
        default_max_parallelism(32769)


@given(st.integers(1, 200), st.data())
def test_the_range_of_a_subtask_is_the_groups_it_owns(
    max_parallelism: int, data: st.DataObject
) -> None:
    parallelism = data.draw(st.integers(1, max_parallelism))
    owners = [
        (group, index)
        for index in range(parallelism)
        for group in key_group_range(max_parallelism, parallelism, index).key_groups
    ]
    assert owners == [
        (group, operator_index(group, parallelism, max_parallelism))
        for group in range(max_parallelism)
    ]
