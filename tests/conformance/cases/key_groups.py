"""Java hash codes, key groups and owners of single keys."""

from __future__ import annotations

import struct
from typing import Any

from aiomailbox.keygroups.assignment import (
    hash_code,
    int32_hash_code,
    key_group,
    key_group_of_hash,
    murmur_hash,
    operator_index,
)

FILE = "key_groups"


def run_case(case: dict[str, Any]) -> None:
    """Compare the hash, the key groups and the owners of one key."""
    key = _key(case)
    # A Python int is a Long: a negative Integer has a hash of its own in Java.
    is_integer = case["type"] == "int"
    code = int32_hash_code(key) if is_integer else hash_code(key)
    assert code == case["java_hashCode"]
    assert murmur_hash(code) == case["murmurHash_of_hashCode"]
    for max_parallelism, group in case["key_group"].items():
        assert key_group_of_hash(code, int(max_parallelism)) == group
        if not (is_integer and key < 0):
            assert key_group(key, int(max_parallelism)) == group
    for max_parallelism, parallelism, index in case["operator_index"]:
        group = key_group_of_hash(code, max_parallelism)
        assert operator_index(group, parallelism, max_parallelism) == index


def _key(case: dict[str, Any]) -> Any:
    key = case["key"]
    if case["type"] == "string":
        units = bytes.fromhex(key["utf16"])
        return units.decode("utf-16-be", "surrogatepass")
    if case["type"] == "double":
        return struct.unpack(">d", bytes.fromhex(key["raw_bits"]))[0]
    return key
