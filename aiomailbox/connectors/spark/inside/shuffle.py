"""Spark's shuffle between two stages: each row to the partition that it names.

Theory of operation: Spark 4.3 has ``repartitionById`` for that. An older one partitions
by a hash only; there each row is given a key of which the hash leads to its partition.
"""

from __future__ import annotations

from typing import Any, Final

from aiomailbox.keygroups.hashing import bit_mix

__all__ = [
    "FALLBACK",
    "exchanged",
    "has_partition_ids",
    "hash_partition",
    "keys_of_partitions",
]

# What explain() calls the other way.
FALLBACK: Final = "repartition() by keys whose hash leads there"
# Spark's seed of hashes that say where a row goes.
_SPARK_SEED: Final = 42
_BY_ID: Final = "repartitionById"
_MASK: Final = 0xFFFFFFFF
_INT_BYTES: Final = 4


def exchanged(df: Any, width: int) -> Any:
    """Bring each row to the partition that it names, in an order that repeats.

    Args:
        df: Rows, as `WIRE_SCHEMA` says.
        width: How many partitions there are.
    """
    from pyspark.sql import functions as sf

    part = sf.col("part")
    if has_partition_ids(df):
        # Not repartition(): it would hash the number again.
        moved = df.repartitionById(width, part)
    else:
        keys = sf.array(*[sf.lit(key) for key in keys_of_partitions(width)])
        moved = df.repartition(width, sf.element_at(keys, part + 1))
    return moved.sortWithinPartitions("wm", "producer", "seq")


def has_partition_ids(df: Any) -> bool:
    """Say whether Spark brings rows to partitions by number."""
    return hasattr(df, _BY_ID)


def keys_of_partitions(width: int) -> list[int]:
    """Return for each of so many partitions an integer that Spark's hash leads there.

    Example:
        >>> [hash_partition(key, 3) for key in keys_of_partitions(3)]
        [0, 1, 2]
    """
    found: dict[int, int] = {}
    key = 0
    while len(found) < width:
        found.setdefault(hash_partition(key, width), key)
        key += 1
    return [found[partition] for partition in range(width)]


def hash_partition(key: int, width: int) -> int:
    """Return the partition to which ``repartition(width, key)`` brings a 32-bit integer.

    Concept:
        Spark, ``HashPartitioning``: ``pmod(hash(key), width)``.
    """
    mixed = (key * 0xCC9E2D51) & _MASK
    mixed = ((mixed << 15) | (mixed >> 17)) & _MASK
    mixed = _SPARK_SEED ^ (mixed * 0x1B873593) & _MASK
    mixed = ((mixed << 13) | (mixed >> 19)) & _MASK
    return bit_mix(((mixed * 5 + 0xE6546B64) & _MASK) ^ _INT_BYTES) % width
