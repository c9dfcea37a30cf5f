"""Records cut anywhere are put together; those that are too large are not."""

from __future__ import annotations

import itertools
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import (
    CorruptStreamError,
    IllegalStateError,
    InvalidArgumentError,
)
from aiomailbox.records import spanning as framing
from aiomailbox.records.spanning import (
    SPILL_THRESHOLD_BYTES,
    DeserializationResult,
    RecordDeserializer,
    begin_frame,
    end_frame,
    frame_record,
)

RECORDS = st.lists(st.binary(max_size=40), max_size=8)


def drain(deserializer: RecordDeserializer) -> list[bytes]:
    found = []
    while True:
        result, content = deserializer.next_record()
        if result.is_full_record:
            found.append(bytes(content))
        if result.is_buffer_consumed:
            return found


def read_in(pieces: list[bytes], **limits: Any) -> list[bytes]:
    deserializer = RecordDeserializer(**limits)
    found = []
    for piece in pieces:
        deserializer.set_next_buffer(piece)
        found += drain(deserializer)
    assert not deserializer.has_unfinished_record
    return found


def cut(stream: bytes, cuts: set[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(at for at in cuts if at <= len(stream))})
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


@given(RECORDS, st.sets(st.integers(0, 400)), st.sampled_from([0, 7, 1000]))
def test_however_it_is_cut_the_records_are_the_same(
    records: list[bytes], cuts: set[int], spill_threshold_bytes: int
) -> None:
    """NET-84."""
    stream = b"".join(map(frame_record, records))
    pieces = cut(stream, cuts)
    assert read_in(pieces, spill_threshold_bytes=spill_threshold_bytes) == records


@given(RECORDS, st.sets(st.integers(0, 400)), st.sampled_from([0, 7, 1000]))
def test_the_fast_way_finds_the_same_records(
    records: list[bytes], cuts: set[int], spill_threshold_bytes: int
) -> None:
    deserializer = RecordDeserializer(spill_threshold_bytes=spill_threshold_bytes)
    found = []
    for piece in cut(b"".join(map(frame_record, records)), cuts):
        found += [bytes(record) for record in deserializer.records(piece)]
    assert found == records
    assert not deserializer.has_unfinished_record


@given(st.lists(st.binary(max_size=40)))
def test_the_fast_way_refuses_what_the_other_one_does(pieces: list[bytes]) -> None:
    outcomes = []
    for is_fast in (True, False):
        deserializer = RecordDeserializer(record_bytes_max=20)
        found: list[bytes | str] = []
        try:
            for piece in pieces:
                if is_fast:
                    found += map(bytes, deserializer.records(piece))
                else:
                    deserializer.set_next_buffer(piece)
                    found += drain(deserializer)
        except CorruptStreamError as error:
            outcomes.append(str(error))
            continue
        outcomes.append(str([found, deserializer.unconsumed()]))
    assert outcomes[0] == outcomes[1]


def test_what_the_fast_way_has_not_reached_can_be_replayed() -> None:
    deserializer = RecordDeserializer()
    records = deserializer.records(frame_record(b"a") + frame_record(b"b"))
    assert bytes(next(records)) == b"a"
    assert deserializer.unconsumed() == frame_record(b"b")


@pytest.mark.parametrize("at", range(1, 11))
def test_one_record_may_be_cut_at_every_byte(at: int) -> None:
    """NET-85."""
    stream = frame_record(b"records")
    assert read_in([stream[:at], stream[at:]]) == [b"records"]


@given(RECORDS, st.integers(0, 400), st.sampled_from([0, 7, 1000]))
def test_what_was_not_handed_out_can_be_replayed(
    records: list[bytes], at: int, spill_threshold_bytes: int
) -> None:
    """NET-87."""
    stream = b"".join(map(frame_record, records))
    deserializer = RecordDeserializer(spill_threshold_bytes=spill_threshold_bytes)
    deserializer.set_next_buffer(stream[:at])
    found = drain(deserializer)
    replayed = deserializer.unconsumed()
    deserializer.clear()
    assert not deserializer.has_unfinished_record
    assert found + read_in([replayed, stream[at:]]) == records


def test_the_unread_part_of_a_buffer_is_replayed_too() -> None:
    deserializer = RecordDeserializer()
    deserializer.set_next_buffer(frame_record(b"a") + frame_record(b"b"))
    result, content = deserializer.next_record()
    assert (result, bytes(content)) == (
        DeserializationResult.INTERMEDIATE_RECORD,
        b"a",
    )
    assert deserializer.unconsumed() == frame_record(b"b")


def test_a_buffer_may_not_be_replaced_before_it_is_consumed() -> None:
    deserializer = RecordDeserializer()
    deserializer.set_next_buffer(frame_record(b"a"))
    with pytest.raises(IllegalStateError, match="next_record"):
        deserializer.set_next_buffer(b"")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("more", [0, 1])
def test_beyond_five_mebibytes_a_record_goes_through_a_file(
    tmp_path: Path, more: int
) -> None:
    """NET-86."""
    content = os.urandom(SPILL_THRESHOLD_BYTES + more)
    stream = frame_record(content)
    deserializer = RecordDeserializer(spill_directory=tmp_path)
    before = open_files()
    deserializer.set_next_buffer(stream[:100])
    assert not drain(deserializer)
    assert deserializer.is_spilling == bool(more)
    assert open_files() == before + more
    deserializer.set_next_buffer(stream[100:])
    result, found = deserializer.next_record()
    assert result is DeserializationResult.LAST_RECORD
    assert found == content
    assert not deserializer.is_spilling
    del found
    assert open_files() == before
    assert not list(tmp_path.iterdir())


def test_an_abandoned_file_is_gone_when_it_is_cleared(tmp_path: Path) -> None:
    deserializer = RecordDeserializer(spill_threshold_bytes=1, spill_directory=tmp_path)
    before = open_files()
    deserializer.set_next_buffer(frame_record(b"abc")[:-1])
    assert not drain(deserializer)
    assert deserializer.is_spilling
    deserializer.clear()
    assert open_files() == before


@pytest.mark.parametrize("length", ["ffffffff", "80000000", "00000065", "7fffffff"])
def test_a_length_that_is_negative_or_beyond_the_limit_is_refused(length: str) -> None:
    deserializer = RecordDeserializer(record_bytes_max=100)
    deserializer.set_next_buffer(bytes.fromhex(length))
    for _ in range(2):
        with pytest.raises(CorruptStreamError):
            deserializer.next_record()


def test_a_length_that_lies_reserves_nothing() -> None:
    tracemalloc.start()
    try:
        deserializer = RecordDeserializer(spill_threshold_bytes=2**31)
        deserializer.set_next_buffer((200 * 1024 * 1024).to_bytes(4, "big") + b"a")
        assert not drain(deserializer)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@given(st.lists(st.binary(max_size=40)))
def test_random_bytes_are_a_corrupt_stream_at_worst(pieces: list[bytes]) -> None:
    try:
        deserializer = RecordDeserializer(record_bytes_max=1000)
        for piece in pieces:
            deserializer.set_next_buffer(piece)
            drain(deserializer)
    except CorruptStreamError:
        pass


def test_a_record_beyond_the_limit_is_refused_where_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(framing, "RECORD_BYTES_MAX", 3)
    output = bytearray(b"before")
    start = begin_frame(output)
    output += b"abcd"
    with pytest.raises(InvalidArgumentError, match="by reference"):
        end_frame(output, start)
    assert output == b"before"
    with pytest.raises(InvalidArgumentError):
        frame_record(b"abcd")
