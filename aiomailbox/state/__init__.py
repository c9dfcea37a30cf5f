"""State of operators: how it is described, kept, captured, restored and rescaled."""

from __future__ import annotations

from aiomailbox.state.accumulators import AccumulatorSchema, accumulator_schema
from aiomailbox.state.backends import (
    HeapStateBackend,
    RocksDBStateBackend,
    StateBackend,
)
from aiomailbox.state.descriptors import (
    VOID,
    AccumulatorDescriptor,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    StateVisibility,
    TtlUpdate,
    ValueStateDescriptor,
    Void,
)
from aiomailbox.state.entries import Entries, GroupedEntries, SnapshotRows, TableRows
from aiomailbox.state.functions import AggregateFunction, ReduceFunction
from aiomailbox.state.heap import HeapStateStore
from aiomailbox.state.layers import DictSnapshot, Layer, LayeredDict, frozen_items
from aiomailbox.state.no_keys import NoKeysStateStore
from aiomailbox.state.operator_state import OperatorStateStore, ReadOnlyBroadcastState
from aiomailbox.state.registry import check_same_state, state_meta
from aiomailbox.state.rescale import (
    OperatorStateEntry,
    OperatorStateSnapshot,
    RedistributionMode,
    SubtaskStateMapper,
    redistribute_operator_state,
)
from aiomailbox.state.schema import StateSchema
from aiomailbox.state.serializers import (
    ObjectSerializer,
    PickleSerializer,
    StateSerializer,
)
from aiomailbox.state.snapshot import (
    FetchFile,
    KeyedStateSnapshot,
    StateFile,
    StateMeta,
    copy_content,
)
from aiomailbox.state.snapshot_codec import (
    decode_keyed_snapshot,
    encode_keyed_snapshot,
)
from aiomailbox.state.state_classes import (
    StateNames,
    check_state_names,
    declared_classes,
    family_kept_in_state,
    is_known_class,
    kept_in_state,
    kept_taken_apart,
    state_name_hints,
)
from aiomailbox.state.store import (
    AggregatingState,
    KeyedStateStore,
    ListState,
    MapState,
    NamespacedTable,
    ReducingState,
    StateTable,
    ValueState,
)

__all__ = [
    "VOID",
    "AccumulatorDescriptor",
    "AccumulatorSchema",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "DictSnapshot",
    "Entries",
    "FetchFile",
    "GroupedEntries",
    "HeapStateBackend",
    "HeapStateStore",
    "KeyedStateSnapshot",
    "KeyedStateStore",
    "Layer",
    "LayeredDict",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "NamespacedTable",
    "NoKeysStateStore",
    "ObjectSerializer",
    "OperatorStateEntry",
    "OperatorStateSnapshot",
    "OperatorStateStore",
    "PickleSerializer",
    "ReadOnlyBroadcastState",
    "RedistributionMode",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "RocksDBStateBackend",
    "SnapshotRows",
    "StateBackend",
    "StateDescriptor",
    "StateFile",
    "StateMeta",
    "StateNames",
    "StateSchema",
    "StateSerializer",
    "StateTable",
    "StateTtlConfig",
    "StateVisibility",
    "SubtaskStateMapper",
    "TableRows",
    "TtlUpdate",
    "ValueState",
    "ValueStateDescriptor",
    "Void",
    "accumulator_schema",
    "check_same_state",
    "check_state_names",
    "copy_content",
    "declared_classes",
    "decode_keyed_snapshot",
    "encode_keyed_snapshot",
    "family_kept_in_state",
    "frozen_items",
    "is_known_class",
    "kept_in_state",
    "kept_taken_apart",
    "redistribute_operator_state",
    "state_meta",
    "state_name_hints",
]
