"""Frames: every message, every cut, and bytes from somebody who means no good."""

from __future__ import annotations

import contextlib
import itertools
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import (
    CorruptStreamError,
    HandshakeError,
    IllegalStateError,
    InvalidArgumentError,
)
from aiomailbox.exchange.remote import wire as m
from aiomailbox.exchange.remote.handshake import agree, check_proof, prove
from aiomailbox.exchange.remote.wire import (
    BUFFER_FRAME_OVERHEAD_BYTES,
    FRAME_HEADER,
    MAGIC,
    WireDecoder,
    encode_message,
    frame,
)
from aiomailbox.memory.buffer import DataType

IDS = st.binary(min_size=16, max_size=16)
COUNTS = st.integers(0, 2**31 - 1)
POSITIVE = st.integers(1, 2**31 - 1)
CONTENT = st.binary(max_size=64)
RANGES = st.tuples(COUNTS, COUNTS).map(sorted)
ADDRESSES = st.builds(m.PartitionAddress, IDS, COUNTS, IDS, IDS, COUNTS, COUNTS)
REQUESTS = st.builds(
    lambda address, ends, receiver, credit: m.PartitionRequest(
        address, ends[0], ends[1], receiver, credit
    ),
    ADDRESSES,
    RANGES,
    IDS,
    COUNTS,
)
HELLOS = st.builds(
    m.Hello, st.just(1), st.integers(1, 9), IDS, st.text(max_size=40), IDS, IDS
)
CONTROL = (
    REQUESTS
    | st.builds(m.AddCredit, POSITIVE, IDS)
    | st.builds(m.ResumeConsumption, IDS)
    | st.builds(m.AckAllUserRecordsProcessed, IDS)
    | st.builds(m.NewBufferSize, POSITIVE, IDS)
    | st.builds(m.SegmentId, COUNTS, POSITIVE, IDS)
    | st.builds(m.CancelPartitionRequest, IDS)
    | st.just(m.CloseRequest())
    | st.builds(m.BacklogAnnouncement, POSITIVE, IDS)
    | st.builds(
        m.ErrorResponse,
        st.builds(m.RemoteCause, st.text(), st.text(), st.text()),
        st.none() | IDS,
    )
    | HELLOS
    | st.builds(m.HelloProof, st.binary(min_size=32, max_size=32))
)
BUFFERS = st.builds(
    lambda receiver, subpartition, number, backlog, kind, content: (
        m.BufferResponse(receiver, subpartition, number, backlog, kind, len(content)),
        content,
    ),
    IDS,
    COUNTS,
    st.integers(0, 2**32 - 1),
    COUNTS,
    st.sampled_from([kind for kind in DataType if kind is not DataType.NONE]),
    CONTENT,
)
STREAMS = st.lists(CONTROL.map(lambda message: (message, b"")) | BUFFERS, max_size=5)


class Handler:
    """Keeps what was decoded; may want no content at all."""

    def __init__(self, *, wants: bool = True) -> None:
        self.wants = wants
        self.window = memoryview(b"")
        self.seen: list[tuple[m.Message, bytes]] = []

    def open_body(self, header: m.BufferResponse) -> memoryview | None:
        self.window = memoryview(bytearray(header.size_bytes))
        return self.window if self.wants else None

    def on_message(self, message: m.Message) -> None:
        content = b""
        if isinstance(message, m.BufferResponse) and message.size_bytes:
            content = bytes(self.window)
        self.seen.append((message, content))


def encoded(stream: list[tuple[m.Message, bytes]]) -> bytes:
    return b"".join(encode_message(message) + content for message, content in stream)


@given(STREAMS, st.sets(st.integers(0, 600)))
def test_however_frames_are_cut_the_messages_are_the_same(
    stream: list[tuple[m.Message, bytes]], cuts: set[int]
) -> None:
    """NET-179."""
    data = encoded(stream)
    handler = Handler()
    decoder = WireDecoder(handler)
    edges = [0, *sorted(at for at in cuts if at < len(data)), len(data)]
    for start, end in itertools.pairwise(edges):
        decoder.feed(data[start:end])
    assert handler.seen == stream
    assert decoder.is_between_frames


@given(CONTROL.map(lambda message: (message, b"")) | BUFFERS)
def test_every_frame_may_be_cut_at_every_byte(entry: tuple[m.Message, bytes]) -> None:
    """NET-180."""
    data = encoded([entry])
    assert int.from_bytes(data[:4], "big") == len(data)
    step = max(1, len(data) // 200)
    for at in range(0, len(data), step):
        handler = Handler()
        decoder = WireDecoder(handler)
        decoder.feed(data[:at])
        assert not handler.seen
        decoder.feed(data[at:])
        assert handler.seen == [entry]


@given(STREAMS, st.integers(1, 40))
def test_content_may_be_received_without_a_copy(
    stream: list[tuple[m.Message, bytes]], chunk: int
) -> None:
    data = memoryview(encoded(stream))
    handler = Handler()
    decoder = WireDecoder(handler)
    while data:
        window = decoder.direct_window
        if window is None:
            decoder.feed(data[:1])
            data = data[1:]
        else:
            size_bytes = min(len(window), chunk, len(data))
            window[:size_bytes] = data[:size_bytes]
            decoder.received(size_bytes)
            data = data[size_bytes:]
    assert handler.seen == stream


@given(STREAMS)
def test_content_that_nobody_wants_is_passed_over(
    stream: list[tuple[m.Message, bytes]],
) -> None:
    handler = Handler(wants=False)
    WireDecoder(handler).feed(encoded(stream))
    assert [message for message, _ in handler.seen] == [
        message for message, _ in stream
    ]


@given(st.lists(st.binary(max_size=80), max_size=6))
def test_random_bytes_are_a_corrupt_stream_at_worst(pieces: list[bytes]) -> None:
    decoder = WireDecoder(Handler())
    with contextlib.suppress(CorruptStreamError):
        for piece in pieces:
            decoder.feed(piece)


@given(st.integers(-128, 127), st.binary(max_size=120))
def test_random_bodies_are_a_corrupt_stream_at_worst(number: int, body: bytes) -> None:
    with contextlib.suppress(CorruptStreamError):
        WireDecoder(Handler()).feed(frame(number, body))


@given(STREAMS.filter(bool), st.data())
def test_a_flipped_bit_is_a_corrupt_stream_at_worst(
    stream: list[tuple[m.Message, bytes]], data: st.DataObject
) -> None:
    flipped = bytearray(encoded(stream))
    place = data.draw(st.integers(0, len(flipped) - 1))
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(CorruptStreamError):
        WireDecoder(Handler()).feed(flipped)


def refused(data: bytes, **limits: Any) -> str:
    decoder = WireDecoder(Handler(), **limits)
    with pytest.raises(CorruptStreamError) as first:
        decoder.feed(data)
    with pytest.raises(CorruptStreamError) as second:
        decoder.feed(encode_message(m.CloseRequest()))
    assert second.value is first.value
    return str(first.value)


def header(length: int, number: int, magic: int = MAGIC) -> bytes:
    return FRAME_HEADER.pack(length, magic, number)


def test_a_web_browser_is_refused_after_nine_bytes() -> None:
    assert "does not speak" in refused(b"GET / HTTP")


@pytest.mark.parametrize("length", [-1, 0, 8, -(2**31)])
def test_a_length_less_than_its_own_header_is_refused(length: int) -> None:
    assert "cannot have" in refused(header(length, 5))


@pytest.mark.parametrize("number", [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 64, 65])
def test_a_huge_length_is_refused_by_the_frames_first_bytes(number: int) -> None:
    assert "cannot have" in refused(header(2**31 - 1, number))


@pytest.mark.parametrize("number", [3, 12, 63, 66, -1])
def test_an_unknown_message_is_refused(number: int) -> None:
    assert f"no message {number}" in refused(header(9, number))


def buffer_frame(**fields: Any) -> bytes:
    plain = m.BufferResponse(bytes(16), 0, 0, 0, DataType.DATA_BUFFER, 8)
    return encode_message(plain._replace(**fields))


def test_a_buffer_larger_than_a_segment_is_refused() -> None:
    assert "exceeds" in refused(
        buffer_frame(size_bytes=33), segment_bytes_max=32, event_bytes_max=64
    )
    large_event = buffer_frame(size_bytes=33, data_type=DataType.EVENT_BUFFER)
    WireDecoder(Handler(), segment_bytes_max=32, event_bytes_max=64).feed(large_event)


@pytest.mark.parametrize(
    ("place", "value"),
    [(16, "ffffffff"), (20, "00000001"), (28, "80000000"), (32, "00"), (32, "0e"), (33, "02"), (34, "00000007")],
)  # fmt: skip
def test_a_buffer_header_that_cannot_be_is_refused(place: int, value: str) -> None:
    data = bytearray(buffer_frame())
    place += FRAME_HEADER.size
    changed = bytes.fromhex(value)
    data[place : place + len(changed)] = changed
    refused(data)


@pytest.mark.parametrize("mark", [1, 2, 255])
def test_a_buffer_that_is_marked_as_compressed_is_refused_before_it_has_a_place(
    mark: int,
) -> None:
    data = bytearray(buffer_frame())
    data[FRAME_HEADER.size + 33] = mark
    handler = Handler()
    handler.open_body = pytest.fail  # type: ignore[assignment]
    with pytest.raises(CorruptStreamError, match="marked as compressed"):
        WireDecoder(handler).feed(data)
    assert not handler.seen


@pytest.mark.parametrize("number", [6, 9, 10])
@pytest.mark.parametrize("value", [0, -1])
def test_a_number_that_has_to_be_positive_is(number: int, value: int) -> None:
    """NET-182: number 6 adds credit."""
    assert "positive" in refused(frame(number, struct.pack(">i16s", value, bytes(16))))


def test_what_could_not_be_decoded_is_not_encoded() -> None:
    for message in (
        m.AddCredit(0, bytes(16)),
        m.AddCredit(1, bytes(15)),
        m.AddCredit(2**31, bytes(16)),
        m.HelloProof(b""),
        m.ResumeConsumption(b""),
    ):
        with pytest.raises(InvalidArgumentError):
            encode_message(message)


def test_long_texts_of_an_error_are_cut() -> None:
    error = m.ErrorResponse(m.RemoteCause("E", "é" * 100_000, "\ud800"))
    handler = Handler()
    WireDecoder(handler).feed(encode_message(error))
    ((found, _),) = handler.seen
    assert isinstance(found, m.ErrorResponse)
    assert found.cause == ("E", "é" * 8_192, "\\ud800")


def test_an_endless_trickle_of_announced_frames_holds_no_memory() -> None:
    tracemalloc.start()
    try:
        decoders = [WireDecoder(Handler()) for _ in range(100)]
        for decoder in decoders:
            decoder.feed(header(40_000, 1) + bytes(100))
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


def test_a_window_of_another_size_is_a_mistake_of_the_handler() -> None:
    handler = Handler()
    handler.open_body = lambda header: memoryview(bytearray(7))  # type: ignore[method-assign]
    with pytest.raises(IllegalStateError, match="7 bytes for 8"):
        WireDecoder(handler).feed(buffer_frame())


def test_the_overhead_of_a_buffer_is_forty_seven_bytes() -> None:
    assert len(buffer_frame()) == BUFFER_FRAME_OVERHEAD_BYTES == 47


def hello(worker: str, first: int = 1, last: int = 1, **fields: bytes) -> m.Hello:
    plain = m.Hello(
        first, last, bytes(16), worker, worker.encode().ljust(16), bytes(16)
    )
    return plain._replace(**fields)


def test_the_newest_common_version_is_spoken() -> None:
    assert agree(hello("a", 1, 3), hello("b", 2, 5)) == 3


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        (hello("b", 3, 4), "versions 3 to 4"),
        (hello("b", job_id=b"x" * 16), "belongs to job"),
        (hello("b", codec_digest=b"x" * 16), "serialize records"),
    ],
)
def test_peers_that_do_not_fit_are_refused_by_name(
    theirs: m.Hello, reason: str
) -> None:
    with pytest.raises(HandshakeError, match=reason) as error:
        agree(hello("a", 1, 2), theirs)
    assert "'b'" in str(error.value)


def test_a_proof_is_of_one_side_one_secret_and_one_pair_of_greetings() -> None:
    secret, a, b = b"s" * 16, hello("a"), hello("b")
    check_proof(secret, a, b, prove(secret, b, a))
    for wrong in (
        prove(b"t" * 16, b, a),
        prove(secret, a, b),
        prove(secret, b, hello("c")),
        m.HelloProof(bytes(32)),
    ):
        with pytest.raises(HandshakeError, match="secret"):
            check_proof(secret, a, b, wrong)
    with pytest.raises(HandshakeError):
        check_proof(secret, a, a, prove(secret, a, a))
