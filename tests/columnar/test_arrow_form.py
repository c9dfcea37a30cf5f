"""Arrow runs cross as columns, and nothing but an Arrow run is read from wrong bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from aiomailbox.columnar.arrow_form import ArrowForm
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.forms import (
    ClassForm,
    DictForm,
    NamedTupleForm,
    RecordForm,
    batch_class,
)
from aiomailbox.columnar.ipc import BatchReader, BatchWriter, can_travel
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.windows import ResultMaker
from aiomailbox.errors import CorruptStreamError, WrongTypeError
from aiomailbox.exchange.frames import FrameEncoder
from aiomailbox.operators.aggregates.compiled import result_type
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.record_classes import RecordClasses
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun
from aiomailbox.records.run_columns import PythonSerializer
from aiomailbox.records.spanning import LENGTH
from aiomailbox.runtime.peers.record_types import record_classes

MOMENT = pa.timestamp("us", "Europe/Oslo")


@dataclass
class City:
    name: str
    visits: int | None = None


class Place(NamedTuple):
    name: str


@dataclass
class Trip:
    start: Place


def scalar_types() -> st.SearchStrategy[pa.DataType]:
    return st.sampled_from(
        [
            pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.float32(), pa.float64(),
            pa.string(), pa.large_string(), pa.binary(), pa.large_binary(),
            pa.binary(3), pa.decimal128(20, 3), pa.decimal256(50, 2), pa.date32(),
            pa.date64(), pa.time32("s"), pa.time64("us"), pa.duration("ms"),
            pa.timestamp("ms"), pa.timestamp("us", "UTC"), MOMENT,
        ]
    )  # fmt: skip


def nested_types(inner: st.SearchStrategy[pa.DataType]) -> Any:
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda kind: pa.list_(kind, 2)),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: pa.struct([(f"f{i}", kind) for i, kind in enumerate(kinds)])
        ),
    )


TYPES = st.recursive(scalar_types(), nested_types, max_leaves=4)
DICTIONARIES = st.sampled_from([pa.string(), pa.int64(), MOMENT]).map(
    lambda kind: pa.dictionary(pa.int8(), kind)
)
SAMPLES: dict[Any, Any] = {
    "bool": True, "int8": -3, "uint64": 2**64 - 1, "float": 0.5, "double": -1.25,
    "string": "é", "large_string": "", "binary": b"\x00x", "large_binary": b"",
}  # fmt: skip


def sample(kind: pa.DataType, seed: int) -> Any:
    """A value of a type, null for every fifth seed."""
    types = pa.types
    if types.is_null(kind) or not seed % 5:
        return None
    if str(kind) in SAMPLES:
        return SAMPLES[str(kind)]
    if types.is_fixed_size_binary(kind):
        return b"abc"
    if types.is_decimal(kind):
        return Decimal(seed)
    if types.is_map(kind):
        return [("key", sample(kind.item_type, seed + 1))]
    if types.is_fixed_size_list(kind):
        return [sample(kind.value_type, seed + 1), sample(kind.value_type, seed + 2)]
    if types.is_nested(kind) and not types.is_struct(kind):
        return [sample(kind.value_type, seed + each) for each in range(seed % 4)]
    if types.is_struct(kind):
        return {field.name: sample(field.type, seed + 1) for field in kind}
    if types.is_date64(kind):
        return seed * 86_400_000
    return seed


def column(kind: pa.DataType, count: int) -> pa.Array:
    if pa.types.is_dictionary(kind):
        text = pa.types.is_string(kind.value_type)
        values = pa.array(
            [f"v{each}" if text else each for each in range(40)],
            pa.string() if text else pa.int64(),
        ).cast(kind.value_type)
        indices = pa.array(
            [None if not each % 5 else each % 40 for each in range(count)], pa.int8()
        )
        return pa.DictionaryArray.from_arrays(indices, values)
    return pa.array([sample(kind, seed) for seed in range(count)], kind)


@st.composite
def batches(draw: Any) -> pa.RecordBatch:
    """Batches of up to three columns, whole or a slice of a longer one."""
    count = draw(st.integers(0, 12))
    kinds = draw(st.lists(TYPES | DICTIONARIES, max_size=3))
    batch = pa.RecordBatch.from_arrays(
        [column(kind, count) for kind in kinds],
        schema=pa.schema([(f"c{index}", kind) for index, kind in enumerate(kinds)]),
    )
    start = draw(st.integers(0, count))
    return batch.slice(start, draw(st.integers(0, count - start)))


def codec_for(*kinds: type) -> ElementCodec:
    classes = record_classes(kinds, has_arrow=True)
    serializer = PythonSerializer(classes)
    return ElementCodec(serializer, forms=[ArrowForm(serializer, classes)])


def with_columns() -> st.SearchStrategy[pa.RecordBatch]:
    """Return batches that are kept as columns: rows without any go as rows."""
    return batches().filter(lambda batch: batch.num_columns > 0)


def run_of(
    batch: pa.RecordBatch, form: RecordForm, timestamps: list[int] | None = None
) -> ArrowRun:
    return ArrowRun(batch, RowMaker(batch.schema, form), timestamps)


@given(with_columns(), st.sampled_from([NamedTupleForm(), DictForm()]), st.data())
def test_runs_come_back_as_they_were(
    batch: pa.RecordBatch, form: RecordForm, data: st.DataObject
) -> None:
    count = batch.num_rows
    times = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=count, max_size=count)
    run = run_of(batch, form, data.draw(st.none() | times))
    codec = codec_for()
    back = codec.decode(codec.encode(run))
    assert len(back) == count
    assert back.timestamps == run.timestamps
    assert back.values == run.values
    assert isinstance(back, ArrowRun)
    assert back.batch.schema == batch.schema
    assert back.batch.to_pylist() == batch.to_pylist()


@given(batches())
def test_a_batch_as_a_record_comes_back_as_it_was(batch: pa.RecordBatch) -> None:
    codec = codec_for()
    back = codec.decode(codec.encode(ListRun([batch, ("of", batch)])))
    assert back.values[0].equals(batch, check_metadata=True)
    assert back.values[1][1].equals(batch)


@given(with_columns(), st.data())
def test_records_that_were_picked_are_those_records(
    batch: pa.RecordBatch, data: st.DataObject
) -> None:
    count = batch.num_rows
    indices = data.draw(st.lists(st.integers(0, count - 1)) if count else st.just([]))
    again = data.draw(
        st.lists(st.integers(0, len(indices) - 1)) if indices else st.just([])
    )
    run = run_of(batch, NamedTupleForm(), list(range(count)))
    if data.draw(st.booleans()):
        assert len(run.values) == count
    taken = run.take(indices).take(again)
    chosen = [indices[each] for each in again]
    assert len(taken) == len(chosen)
    assert taken.timestamps == chosen
    codec = codec_for()
    for one in (taken, codec.decode(codec.encode(taken))):
        assert one.values == [run.values[each] for each in chosen]
    assert taken.slice(0, len(chosen)).values == taken.values
    assert taken.with_timestamps(None).values == taken.values


def test_picking_copies_nothing_until_columns_are_asked_for() -> None:
    batch = pa.record_batch({"a": list(range(1000))})
    places = list(range(0, 1000, 10))
    taken = run_of(batch, DictForm()).take(places)
    assert isinstance(taken, ArrowRun)
    assert taken._batch is batch
    assert taken.size_bytes() == 800, "its share of the batch"
    assert taken.timed_by("a").timestamps == places
    assert taken._batch is batch, "of one column only"
    assert taken.batch.num_rows == 100
    assert taken._batch.num_rows == 100


def test_objects_of_declared_classes_are_made_by_the_reader() -> None:
    batch = pa.record_batch({"visits": [1, None], "name": ["Oslo", "Rome"]})
    codec = codec_for(City)
    back = codec.decode(codec.encode(run_of(batch, ClassForm(City))))
    assert isinstance(back, ArrowRun)
    assert back._rows is None
    assert back.values == [City("Oslo", 1), City("Rome", None)]


def test_nothing_of_the_bytes_is_kept() -> None:
    codec = codec_for()
    encoded = bytearray(codec.encode(run_of(pa.record_batch({"a": ["x"]}), DictForm())))
    back = codec.decode(memoryview(encoded))
    encoded[:] = bytes(len(encoded))
    assert back.values == [{"a": "x"}]


@pytest.mark.parametrize(
    ("batch", "form"),
    [
        (pa.record_batch({"a": pa.array(["x"], pa.string_view())}), DictForm()),
        (
            pa.record_batch({"start": pa.array([{"name": "Oslo"}])}),
            ClassForm(Trip),
        ),
        (
            pa.record_batch(
                {
                    "a": pa.array(
                        [["x"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))
                    )
                }
            ),
            DictForm(),
        ),
    ],
)
def test_what_cannot_go_as_columns_goes_as_rows(
    batch: pa.RecordBatch, form: RecordForm
) -> None:
    codec = codec_for(Trip, Place)
    run = run_of(batch, form, [5])
    back = codec.decode(codec.encode(run))
    assert type(back) is ListRun
    assert (back.values, back.timestamps) == (run.values, [5])


def test_columns_that_mean_something_else_go_as_rows() -> None:
    batch = pa.record_batch({"a": [1, 2]})
    maker = RowMaker(
        batch.schema,
        DictForm(),
        {("a",): lambda values: [str(each) for each in values]},
    )
    codec = codec_for()
    assert codec.decode(codec.encode(ArrowRun(batch, maker))).values == [
        {"a": "1"},
        {"a": "2"},
    ]


def test_a_class_that_was_not_declared_is_refused_at_both_ends() -> None:
    run = run_of(pa.record_batch({"name": ["Oslo"]}), ClassForm(City))
    with pytest.raises(
        WrongTypeError, match="City cannot be sent, for its class is not declared"
    ):
        codec_for().encode(run)
    encoded = codec_for(City).encode(run)
    with pytest.raises(CorruptStreamError, match=r"no class .*City"):
        codec_for().decode(encoded)


def test_a_large_dictionary_does_not_travel_with_every_piece() -> None:
    values = pa.array([f"{number:0>100}" for number in range(5_000)])
    indices = pa.array(range(5_000), pa.int32())
    array = pa.DictionaryArray.from_arrays(indices, values)
    run = run_of(pa.record_batch({"a": array}), DictForm())
    codec = codec_for()
    frames = list(FrameEncoder(codec).frames(run))
    assert sum(len(frame) for frame, _ in frames) < 2 * values.nbytes
    back = [codec.decode(frame[LENGTH.size :]) for frame, _ in frames]
    assert [row for piece in back for row in piece.values] == run.values
    assert {piece.batch.schema.field("a").type for piece in back} == {array.type}


def test_frames_of_columns_are_about_as_large_as_wished() -> None:
    batch = pa.record_batch({"a": ["x" * 1000] * 5000, "b": list(range(5000))})
    codec = codec_for()
    frames = list(FrameEncoder(codec).frames(run_of(batch, DictForm())))
    sizes = [len(frame) for frame, _ in frames]
    assert max(sizes) < 4 * 32 * 1024
    assert sum(sizes) < 1.2 * batch.nbytes


def test_a_frame_of_narrow_columns_holds_more_records_than_a_run_of_rows() -> None:
    run = run_of(pa.record_batch({"n": list(range(16_000))}), DictForm())
    frames = list(FrameEncoder(codec_for()).frames(run))
    assert sum(count for _, count in frames) == 16_000
    assert max(count for _, count in frames) > RUN_LENGTH_MAX


ENCODED = [
    codec_for(City).encode(run)
    for run in (
        run_of(pa.record_batch({"name": ["Oslo", "é"]}), ClassForm(City), [1, 2]),
        run_of(
            pa.record_batch(
                {
                    "a": pa.array([[{"x": 1}], None]),
                    "b": pa.array([1, 2], MOMENT),
                    "n": pa.nulls(2),
                    "d": pa.array(["x", "y"]).dictionary_encode(),
                }
            ),
            DictForm(),
        ),
        run_of(pa.record_batch({"a": [1]}), NamedTupleForm(), [-1]),
        ListRun([pa.record_batch({"a": ["x", None]})]),
    )
]


@settings(max_examples=300)
@given(
    st.sampled_from(ENCODED),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4),
    st.none() | st.integers(0, 10_000),
)
def test_wrong_bytes_are_a_corrupt_stream_or_a_run(
    encoded: bytes, changes: list[tuple[int, int]], cut: int | None
) -> None:
    mangled = bytearray(encoded if cut is None else encoded[: cut % len(encoded)])
    for place, value in changes:
        if mangled:
            mangled[place % len(mangled)] = value
    codec = codec_for(City)
    try:
        run = codec.decode(mangled)
    except CorruptStreamError:
        return
    if isinstance(run, ArrowRun):
        run.batch.validate(full=True)


def every_byte_changed() -> list[bytes]:
    written = BatchWriter().write(pa.record_batch({"a": ["x", None], "b": [[1], []]}))
    return [
        written[:place] + bytes([written[place] ^ flip]) + written[place + 1 :]
        for place in range(len(written))
        for flip in (1, 0x40, 0x80, 0xFF)
    ]


def test_no_single_byte_gets_a_reader_out_of_step() -> None:
    reader = BatchReader()
    refused = 0
    for written in every_byte_changed():
        try:
            reader.read(written).validate(full=True)
        except CorruptStreamError:
            refused += 1
    assert refused > 100


def stream_of(batch: pa.RecordBatch, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)
    ) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def test_compressed_batches_are_refused_before_they_are_unpacked() -> None:
    batch = pa.record_batch({"a": [0] * 100_000})
    assert BatchReader().read(stream_of(batch)).equals(batch)
    before = pa.total_allocated_bytes()
    packed = stream_of(batch, compression="zstd")
    assert len(packed) < 2_000
    with pytest.raises(CorruptStreamError, match="compressed"):
        BatchReader().read(packed)
    words = pa.array(["x" * 1000] * 2).dictionary_encode()
    with pytest.raises(CorruptStreamError, match="compressed"):
        BatchReader().read(stream_of(pa.record_batch({"a": words}), compression="lz4"))
    assert pa.total_allocated_bytes() - before < 1_000_000


def test_more_nulls_than_bytes_are_refused_at_both_ends() -> None:
    batch = pa.record_batch({"a": pa.nulls(2**22)})
    with pytest.raises(WrongTypeError, match="columns of type null"):
        BatchWriter().write(batch)
    with pytest.raises(CorruptStreamError, match="cannot be in a record batch"):
        BatchReader().read(stream_of(batch))


def test_nulls_inside_lists_count_too() -> None:
    offsets = pa.array([0, 2**22], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.nulls(2**22))
    batch = pa.record_batch({"a": lists})
    with pytest.raises(CorruptStreamError, match="cannot be in a record batch"):
        BatchReader().read(stream_of(batch))


def test_two_batches_are_not_one() -> None:
    batch = pa.record_batch({"a": [1]})
    written = BatchWriter().write(batch)
    with pytest.raises(CorruptStreamError, match="more than one"):
        BatchReader().read(written + batch.serialize().to_pybytes())
    with pytest.raises(CorruptStreamError, match="out of place"):
        BatchReader().read(batch.serialize().to_pybytes())


def test_types_whose_values_may_overlap_are_refused_at_both_ends() -> None:
    batch = pa.record_batch({"a": pa.array(["x"], pa.string_view())})
    with pytest.raises(WrongTypeError, match=r"column 'a' of type string_view .* Cast"):
        BatchWriter().write(batch)
    with pytest.raises(CorruptStreamError, match="string_view"):
        BatchReader().read(stream_of(batch))


def test_deep_types_cannot_travel() -> None:
    kind = pa.int8()
    for _ in range(60):
        kind = pa.list_(kind)
    assert not can_travel(kind)
    batch = pa.record_batch({"a": pa.array([], kind)})
    with pytest.raises(WrongTypeError):
        BatchWriter().write(batch)


def test_a_reader_of_many_schemas_remembers_few() -> None:
    writer, reader = BatchWriter(), BatchReader()
    for number in range(500):
        batch = pa.record_batch({f"c{number}": [number]})
        assert reader.read(writer.write(batch)).equals(batch)
    assert len(reader._schemas) <= 64


def test_a_batch_made_of_anything_but_bytes_is_corrupt() -> None:
    with pytest.raises(CorruptStreamError, match="made of bytes"):
        batch_class().build(["text"])


def test_counts_that_differ_from_the_batch_are_corrupt() -> None:
    codec = codec_for()
    encoded = bytearray(codec.encode(run_of(pa.record_batch({"a": [1]}), DictForm())))
    struct.pack_into(">i", encoded, 2, 7)
    with pytest.raises(CorruptStreamError, match="7 records are announced, and 1"):
        codec.decode(encoded)
    struct.pack_into(">i", encoded, 2, -1)
    with pytest.raises(CorruptStreamError):
        codec.decode(encoded)


def test_forms_that_do_not_exist_are_corrupt() -> None:
    form = ArrowForm(PythonSerializer(), RecordClasses())
    with pytest.raises(CorruptStreamError, match="form 9"):
        form.read(ByteReader(b"\x09"))


def test_results_of_aggregates_travel_as_columns() -> None:
    single = ResultMaker(None).run([pa.array([2.5, None])], np.array([7, 8]))
    kind = result_type(("key", "n"))
    several = ResultMaker(("key", "n")).run([pa.array(["a"]), pa.array([2])], None)
    keyed = ResultMaker(("key", "n"), ("city", "day"))
    tuples = keyed.run([keyed.key_column([("a", 1)], None), pa.array([2])], None)
    for run in (single, several, tuples):
        codec = codec_for(kind)
        back = codec.decode(codec.encode(run))
        # The next process may pass it on.
        for each in (back, codec.decode(codec.encode(back))):
            assert isinstance(each, ArrowRun)
            assert each.batch.equals(run.batch)
            assert (each.values, each.timestamps) == (run.values, run.timestamps)
            assert list(map(type, each.values)) == list(map(type, run.values))
            if run is tuples:
                assert type(each.values[0].key) is tuple
