"""Every name of the streaming API is here, or the map says where it went, and why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import aiomailbox as am
import aiomailbox.exchange
from aiomailbox.operators.stateless.operators import MapOperator
from aiomailbox.testing import OneInputHarness

MAP = (Path(__file__).parents[2] / "docs" / "flink-map.md").read_text("utf-8")
LEFT_COLUMN = "\n".join(
    line.split("|")[1] for line in MAP.splitlines() if line.startswith("|")
)

# The names that someone who knows Flink's or PyFlink's DataStream API looks for.
NAMES = [
    "StreamEnvironment",
    "CheckpointingMode",
    "FileCheckpointStorage",
    "MemoryStateBackend",
    "restart",
    "OutputTag",
    "WatermarkStrategy",
    "JobHandle",
    "JobFailedError",
    "ProcessFunction",
    "KeyedProcessFunction",
    "CoProcessFunction",
    "KeyedCoProcessFunction",
    "BroadcastProcessFunction",
    "KeyedBroadcastProcessFunction",
    "ProcessWindowFunction",
    "ProcessJoinFunction",
    "AggregateFunction",
    "ReduceFunction",
    "AsyncFunction",
    "CheckpointedFunction",
    "snapshot_state",
    "initialize_state",
    "CheckpointListener",
    "notify_checkpoint_complete",
    "notify_checkpoint_aborted",
    "ValueStateDescriptor",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "ReducingStateDescriptor",
    "AggregatingStateDescriptor",
    "StateTtlConfig",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "EventTimeSessionWindows",
    "ProcessingTimeSessionWindows",
    "GlobalWindows",
    "TimeWindow",
    "EventTimeTrigger",
    "ProcessingTimeTrigger",
    "CountTrigger",
    "ContinuousEventTimeTrigger",
    "PurgingTrigger",
    "DeltaTrigger",
    "NeverTrigger",
    "CountEvictor",
    "TimeEvictor",
    "DeltaEvictor",
    "Source",
    "SplitEnumerator",
    "SourceReader",
    "SourceSplit",
    "InputStatus",
    "Boundedness",
    "Sink",
    "SinkWriter",
    "StatefulSinkWriter",
    "CommittingSinkWriter",
    "Committer",
    "CommitRequest",
    "CollectSink",
    "QueueSource",
    "IterableSource",
    "SparkDataFrameSource",
    "FileSink",
    "Mail",
    "MailOptions",
    "TaskMailbox",
    "MailboxProcessor",
    "MailboxExecutor",
    "MailboxDefaultAction",
    "MailboxController",
    "AvailabilityProvider",
    "InputGate",
    "ResultSubpartition",
    "ManualClock",
    "OneInputHarness",
    "KeyedOneInputHarness",
    "TwoInputHarness",
    "SourceHarness",
    "SinkHarness",
    "GateHarness",
]

VERBS = [
    "map",
    "flat_map",
    "filter",
    "process",
    "key_by",
    "union",
    "connect",
    "broadcast",
    "rebalance",
    "rescale",
    "shuffle",
    "forward",
    "global_",
    "partition_custom",
    "assign_timestamps_and_watermarks",
    "window_all",
    "async_map",
    "join",
    "co_group",
    "interval_join",
    "get_side_output",
    "sink_to",
    "execute_and_collect",
    "uid",
    "name",
    "set_parallelism",
    "set_max_parallelism",
    "slot_sharing_group",
    "start_new_chain",
    "disable_chaining",
    "window",
    "reduce",
    "aggregate",
]

ASSIGNERS = (am.EventTimeSessionWindows, am.ProcessingTimeSessionWindows)
MEMBERS: list[tuple[object, str]] = [
    *((kind, name) for kind in ASSIGNERS for name in ("with_gap", "with_dynamic_gap")),
    *((am.GlobalWindows, "create"),),
    *((am.GlobalWindows, "create_with_end_of_stream_trigger"),),
    *(
        (am.WatermarkStrategy, name)
        for name in (
            "for_bounded_out_of_orderness",
            "with_timestamp_assigner",
            "with_idleness",
            "with_watermark_alignment",
        )
    ),
    *(
        (am.WindowedStream, name)
        for name in (
            "trigger",
            "evictor",
            "allowed_lateness",
            "side_output_late_data",
            "aggregate",
            "reduce",
            "process",
            "apply",
        )
    ),
    *(
        (am.MailboxExecutor, name)
        for name in (
            "execute",
            "submit",
            "yield_to_mail",
            "try_yield_to_mail",
            "is_idle",
        )
    ),
]

HARNESS_METHODS = [
    "process_element",
    "process_watermark",
    "process_status",
    "set_processing_time",
    "snapshot",
    "restore",
    "output",
    "side_output",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_public_or_on_the_map(name: str) -> None:
    assert name in am.__all__ or _is_on_the_map(name)


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_of_streams_is_there_or_on_the_map(name: str) -> None:
    assert hasattr(am.KeyedStream, name) or _is_on_the_map(name)


@pytest.mark.parametrize(("owner", "name"), MEMBERS)
def test_a_member_is_there(owner: object, name: str) -> None:
    assert hasattr(owner, name)


@pytest.mark.parametrize("name", HARNESS_METHODS)
def test_a_harness_can_do_what_one_looks_for(name: str) -> None:
    assert hasattr(OneInputHarness(MapOperator(str)), name)


def test_the_map_is_asked_and_does_not_know_everything() -> None:
    assert not _is_on_the_map("NoSuchName")


def test_the_parts_of_the_exchange_are_in_their_package() -> None:
    assert aiomailbox.exchange.InputGate
    assert aiomailbox.exchange.PipelinedSubpartition


def _is_on_the_map(name: str) -> bool:
    return re.search(rf"`{name}`", LEFT_COLUMN) is not None
