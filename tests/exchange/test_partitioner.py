from __future__ import annotations

import pickle
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import IllegalStateError, InvalidArgumentError, KeyTypeError
from aiomailbox.exchange.writer import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    KeyGroupPartitioner,
    Partitioner,
    RebalancePartitioner,
    RescalePartitioner,
    ShufflePartitioner,
)
from aiomailbox.keygroups.assignment import key_group, operator_index
from aiomailbox.records.run import ListRun, Run


def modulo(key: int, count: int) -> int:
    return key % count


def identity(value: Any) -> Any:
    return value


def everything() -> list[Partitioner]:
    return [
        GlobalPartitioner(),
        BroadcastPartitioner(),
        RebalancePartitioner(),
        RescalePartitioner(),
        ShufflePartitioner(),
        CustomPartitioner(modulo, identity),
        KeyGroupPartitioner(identity, 128),
    ]


class Columns:
    """A run in a form of its own, which cannot pick single records."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self.timestamps = None

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> Run:
        return Columns(self.values[start:stop])

    def with_timestamps(self, timestamps: list[int] | None) -> Run:
        return self

    def size_bytes(self) -> int:
        return len(self.values)


class TakeableColumns(Columns):
    """One that can."""

    def take(self, indices: list[int]) -> Run:
        return TakeableColumns([self.values[index] for index in indices])


# Distinct and increasing, so that order and multiplicity can be seen.
RUNS = st.lists(st.integers(1, 40), min_size=1, max_size=6)
CHANNELS = st.integers(1, 7)


@given(RUNS, CHANNELS, st.integers(0, 2**32), st.booleans(), st.sampled_from(range(7)))
def test_every_record_goes_once_in_order_with_its_timestamp(
    lengths: list[int], channels: int, seed: int, timed: bool, which: int
) -> None:
    partitioner = everything()[which].fresh(Random(seed))
    received: list[list[int]] = [[] for _ in range(channels)]
    start = 0
    for length in lengths:
        values = list(range(start, start + length))
        timestamps = [value * 10 for value in values] if timed else None
        run = ListRun(values, timestamps)
        parts = partitioner.split_run(run, channels)
        assert len({channel for channel, _ in parts}) == len(parts)
        for channel, part in parts:
            assert len(part)
            assert part.timestamps == (
                [value * 10 for value in part.values] if timed else None
            )
            received[channel] += part.values
        assert (run.values, run.timestamps) == (values, timestamps)
        start += length
    assert all(each == sorted(each) for each in received)
    copies = channels if partitioner.is_broadcast else 1
    everyone = [value for each in received for value in each]
    assert sorted(everyone) == sorted(list(range(start)) * copies)


@given(RUNS, CHANNELS, st.integers(0, 2**32))
def test_rebalancing_deals_record_by_record_from_a_random_start(
    lengths: list[int], channels: int, seed: int
) -> None:
    partitioner = RebalancePartitioner().fresh(Random(seed))
    placed = {}
    start = 0
    for length in lengths:
        run = ListRun(list(range(start, start + length)))
        for channel, part in partitioner.split_run(run, channels):
            placed.update(dict.fromkeys(part.values, channel))
        start += length
    order = [placed[value] for value in range(start)]
    assert order == [(order[0] + value) % channels for value in range(start)]


def test_writers_start_rebalancing_at_different_channels_and_rescaling_at_the_first() -> (
    None
):
    run = ListRun([1])
    random = Random(7)
    starts = {
        RebalancePartitioner().fresh(random).split_run(run, 4)[0][0] for _ in range(50)
    }
    assert starts == {0, 1, 2, 3}
    rescaled = RescalePartitioner().fresh(random).split_run(run, 4)
    assert [(channel, part.values) for channel, part in rescaled] == [(0, [1])]


KEYS = st.one_of(
    st.lists(st.text(max_size=5), min_size=1, max_size=30),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 9), st.text(max_size=2)), min_size=1),
)


@given(KEYS, st.integers(2, 7), st.sampled_from([7, 128, 1000]))
def test_a_key_goes_to_the_owner_of_its_key_group(
    keys: list[Any], channels: int, max_parallelism: int
) -> None:
    partitioner = KeyGroupPartitioner(identity, max_parallelism)
    for channel, part in partitioner.split_run(ListRun(keys), channels):
        for key in part.values:
            group = key_group(key, max_parallelism)
            assert operator_index(group, channels, max_parallelism) == channel


@pytest.mark.parametrize("partitioner", everything(), ids=repr)
def test_with_one_channel_the_run_moves_as_it_is(partitioner: Partitioner) -> None:
    run = ListRun([1, 2, 3])
    ((channel, moved),) = partitioner.fresh(Random(0)).split_run(run, 1)
    assert (channel, moved is run) == (0, True)


def test_a_run_with_one_target_moves_as_it_is() -> None:
    run = ListRun(["k"] * 5)
    ((_, moved),) = KeyGroupPartitioner(identity, 128).split_run(run, 4)
    assert moved is run
    assert all(each is run for _, each in BroadcastPartitioner().split_run(run, 3))


def test_other_forms_keep_their_form_where_they_can() -> None:
    slices = RebalancePartitioner(1).split_run(Columns([0, 1, 2, 3, 4]), 2)
    assert [(channel, type(run), run.values) for channel, run in slices] == [
        (1, Columns, [0, 1, 2]),
        (0, Columns, [3, 4]),
    ]
    taken = RebalancePartitioner().split_run(TakeableColumns([0, 1, 2]), 2)
    assert [(type(run), run.values) for _, run in taken] == [
        (TakeableColumns, [0, 2]),
        (TakeableColumns, [1]),
    ]
    custom = CustomPartitioner(modulo, identity)
    chosen = custom.split_run(TakeableColumns([0, 1, 2]), 2)
    assert [(type(run), run.values) for _, run in chosen] == [
        (TakeableColumns, [0, 2]),
        (TakeableColumns, [1]),
    ]
    rows = custom.split_run(Columns([0, 1, 2]), 2)
    assert [run.values for _, run in rows] == [[0, 2], [1]]


def test_forward_has_one_channel() -> None:
    with pytest.raises(IllegalStateError, match="rebalance"):
        ForwardPartitioner().split_run(ListRun([1]), 2)


@pytest.mark.parametrize("answer", [-1, 2, "0", None, 0.0])
def test_a_custom_function_must_name_a_channel(answer: Any) -> None:
    partitioner = CustomPartitioner(lambda key, count: answer, identity)
    with pytest.raises(InvalidArgumentError, match="from 0 to 1"):
        partitioner.split_run(ListRun([1]), 2)


def test_what_a_users_function_raises_surfaces() -> None:
    def boom(*_: Any) -> int:
        raise ZeroDivisionError

    run = ListRun([1])
    for partitioner in (
        CustomPartitioner(boom, identity),
        CustomPartitioner(modulo, boom),
        KeyGroupPartitioner(boom, 128),
    ):
        with pytest.raises(ZeroDivisionError):
            partitioner.split_run(run, 2)
    with pytest.raises(KeyTypeError):
        KeyGroupPartitioner(identity, 128).split_run(ListRun([1, "1"]), 2)


def test_a_shuffle_description_cannot_split() -> None:
    with pytest.raises(IllegalStateError, match="fresh"):
        ShufflePartitioner().split_run(ListRun([1]), 2)


@pytest.mark.parametrize("partitioner", everything(), ids=repr)
def test_descriptions_travel_and_each_writer_takes_a_fresh_one(
    partitioner: Partitioner,
) -> None:
    copy = pickle.loads(pickle.dumps(partitioner))
    one, two = copy.fresh(Random(1)), copy.fresh(Random(1))
    run = ListRun(list(range(9)))
    first = [(channel, part.values) for channel, part in one.split_run(run, 3)]
    second = [(channel, part.values) for channel, part in two.split_run(run, 3)]
    assert first == second
    assert type(one) is type(partitioner)
    assert one is not copy


def test_a_used_key_group_partitioner_travels_without_its_cache() -> None:
    partitioner = KeyGroupPartitioner(identity, 128)
    partitioner.split_run(ListRun(["a"]), 2)
    assert pickle.loads(pickle.dumps(partitioner))._assigner is None


def test_flags_say_what_the_graph_needs() -> None:
    flags = {each.name: (each.is_broadcast, each.is_pointwise) for each in everything()}
    assert flags == {
        "GLOBAL": (False, False),
        "BROADCAST": (True, False),
        "REBALANCE": (False, False),
        "RESCALE": (False, True),
        "SHUFFLE": (False, False),
        "CUSTOM": (False, False),
        "HASH": (False, False),
    }
    assert ForwardPartitioner.is_pointwise
