"""Files that say whether they are whole."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, strategies as st

from aiomailbox.checkpoint.layout import checked_chunks, checked_frames
from aiomailbox.errors import DamagedFileError

payloads = st.lists(st.binary(min_size=1, max_size=50), max_size=8)


def written(frames: list[bytes]) -> bytes:
    return b"".join(checked_chunks(3, frames))


@given(payloads, st.integers(1, 20))
def test_what_was_written_is_read_however_it_is_cut(
    frames: list[bytes], cut: int
) -> None:
    data = written(frames)
    chunks = [data[start : start + cut] for start in range(0, len(data), cut)]
    assert list(checked_frames("f", 3, chunks)) == frames


@given(payloads, st.data())
def test_every_flipped_bit_is_noticed(frames: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(written(frames))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedFileError, match=r"^f cannot be read"):
        list(checked_frames("f", 3, [bytes(whole)]))


@given(payloads, st.data())
def test_every_missing_end_is_noticed(frames: list[bytes], data: st.DataObject) -> None:
    whole = written(frames)
    end = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DamagedFileError, match="truncated"):
        list(checked_frames("f", 3, [whole[:end]]))


def test_frames_that_are_missing_or_swapped_are_noticed() -> None:
    head, one, two, end = written([b"aaaa", b"bbbb"]), 8, 20, 32
    first, second = head[one:two], head[two:end]
    for middle in (first, second, second + first, first + first):
        with pytest.raises(DamagedFileError, match="missing, or in another order"):
            list(checked_frames("f", 3, [head[:one], middle, head[end:]]))


def test_what_follows_the_end_is_noticed() -> None:
    with pytest.raises(DamagedFileError, match="follows its end"):
        list(checked_frames("f", 3, [written([b"1"]), b"2"]))


def test_a_file_of_another_kind_or_version_is_refused() -> None:
    data = written([b"1"])
    with pytest.raises(DamagedFileError, match="kind 3, not 4"):
        list(checked_frames("f", 4, [data]))
    newer = data[:6] + b"\2" + data[7:]
    with pytest.raises(DamagedFileError, match="version 2, and this release reads 1"):
        list(checked_frames("f", 3, [newer]))


def test_a_size_is_checked_before_anything_is_allocated() -> None:
    data = written([])[:8] + b"\xff\xff\xff\xff" + bytes(4)
    with pytest.raises(DamagedFileError, match="too large"):
        list(checked_frames("f", 3, [data]))


def test_large_frames_pass() -> None:
    frames = [os.urandom(size) for size in (4095, 4096, 5 << 20)]
    assert list(checked_frames("f", 3, checked_chunks(3, frames))) == frames
