"""Operators that are fused count their records as if each was one of its own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.operators.stateless.fused import StageKind

# More than a run.
COUNT = 1_100


def _map(value: int) -> int:
    if value % 11 == 5:
        raise ValueError(value)
    return value + 1


def _filter(value: int) -> bool:
    if value % 13 == 5:
        raise ValueError(value)
    return value % 3 != 0


def _flat_map(value: int) -> list[int]:
    if value % 7 == 5:
        raise ValueError(value)
    return [value, value + 1] if value % 2 else []


FUNCTIONS: dict[StageKind, Any] = {
    StageKind.MAP: _map,
    StageKind.FILTER: _filter,
    StageKind.FLAT_MAP: _flat_map,
}


def _expected(shape: tuple[StageKind, ...]) -> list[tuple[int, int]]:
    values, counts = list(range(COUNT)), []
    for kind in shape:
        results: list[int] = []
        for value in values:
            try:
                result = FUNCTIONS[kind](value)
            except ValueError:
                continue
            if kind is StageKind.FLAT_MAP:
                results += result
            elif kind is StageKind.MAP or result:
                results.append(value if kind is StageKind.FILTER else result)
        counts.append((len(values), len(results)))
        values = results
    return counts


SHAPES = [
    shape
    for length in (1, 2, 3, 4)
    for shape in itertools.product(StageKind, repeat=length)
]


@pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda shape: "-".join(kind.value for kind in shape)
)
async def test_each_operator_counts_what_goes_in_and_comes_out(
    shape: tuple[StageKind, ...],
) -> None:
    env = am.StreamExecutionEnvironment()
    stream: Any = env.from_collection(range(COUNT))
    for index, kind in enumerate(shape):
        verb = getattr(stream, kind.value)
        stream = verb(FUNCTIONS[kind], on_error=am.skip).name(f"stage {index}")
    stream.sink_to(lambda value: None)
    async with env.start() as job:
        await job.result()
        metrics = job.metrics().operators
    of_stages = [metrics[f"stage {index}"] for index in range(len(shape))]
    counts = [(one["num_records_in"], one["num_records_out"]) for one in of_stages]
    assert counts == _expected(shape)
