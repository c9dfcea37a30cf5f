"""Objects of the classes that the library itself may have in saved state.

Their bytes are a fixture, too: it has those that need a server to be met in a job. It is
changed as little as `tests.saved.programs`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import Row

import aiomailbox as am
from aiomailbox.connectors.async_iterable import AsyncSplit
from aiomailbox.connectors.collection import RangeSplit
from aiomailbox.connectors.files.source import FileSplit, FilesSeen
from aiomailbox.connectors.spark.inside.partitions import PartitionPosition
from aiomailbox.connectors.spark.reader import SparkSplit
from aiomailbox.connectors.spark.streaming import StreamSplit
from aiomailbox.operators.aggregates.compiled import result_type
from aiomailbox.operators.core.user_code import DeadLetter
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.operators.useful.patterns import Partial
from aiomailbox.records.events import StreamRecord
from aiomailbox.records.record_classes import record_class
from aiomailbox.state.descriptors import VOID
from aiomailbox.state.operator_state import OperatorStateSnapshot
from aiomailbox.testing.scripted_source import ScriptSplit
from aiomailbox.windowing.operator import FailedWindow
from aiomailbox.windowing.time_window import GlobalWindow, TimeWindow

NAME = "objects.bin"
# A class of the library that only a type hint of a user's names.
HINTS: list[Any] = [DeadLetter, FailedWindow, am.Match, am.Session, am.Question]
HINTS += [am.Answer, am.JobState, am.Guarantee]


def objects() -> list[Any]:
    """Return one of each class."""
    window = TimeWindow(0, 1_000)
    split = FileSplit("in/a.csv", 17)
    return [
        result_type(("key", "n"))("k", 3),
        record_class(("city", "n"))("Oslo", 3),
        pa.record_batch({"city": ["Oslo", "Rome"]}),
        Row(city="Oslo", n=3),
        window,
        GlobalWindow.GLOBAL,
        VOID,
        StreamRecord(("a", 1), 5),
        Partial(5, 1, ((1, None), None)),
        FailedWindow("k", window, [1, 2]),
        DeadLetter(FailedWindow("k", window, []), 5, "map", None, 2, "E", "no", "at"),
        am.Match("k", {"low": 1}, 0, 9),
        am.Session("k", 0, 9, [1]),
        am.Question(0, 7, "what"),
        am.Answer(0, 7, "that"),
        am.JobState.RUNNING,
        am.Guarantee.EXACTLY_ONCE,
        AsyncSplit("items", 7),
        RangeSplit("0", 3, 9),
        split,
        FilesSeen([split], ["in/a.csv", "in/b.csv"]),
        ScriptSplit("a", 3),
        PartitionPosition(2, 17, 12345),
        StreamSplit("query", "6ba7", 3, 1, 7, 99),
        SparkSplit("df", 2, 17, "abc", 99, 40),
    ]


def encoded() -> bytes:
    """Return them as an operator keeps them."""
    own = OperatorStateSnapshot().with_list("objects", objects())
    return encode_snapshot(OperatorSnapshot(own=own))


def decoded(data: bytes) -> list[Any]:
    """Return those that were encoded, for a job that declares what a user would."""
    return decode_snapshot(data, HINTS).own.elements("objects")
