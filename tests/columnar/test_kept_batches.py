"""Records that are batches of Arrow can be kept in state."""

from __future__ import annotations

import pyarrow as pa

import aiomailbox.checkpoint  # noqa: F401 -- declares them
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.state.operator_state import OperatorStateSnapshot


def test_batches_are_kept_as_arrow_writes_them() -> None:
    batches = [pa.record_batch({"city": ["Oslo", "Rome"]}), pa.record_batch({"n": [1]})]
    own = OperatorStateSnapshot().with_list("held", batches)
    data = encode_snapshot(OperatorSnapshot(own=own), [])
    found = decode_snapshot(data).own.elements("held")
    assert all(a.equals(b) for a, b in zip(found, batches, strict=True))
