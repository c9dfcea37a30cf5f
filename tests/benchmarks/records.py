"""The records that every system gets: made by a generator, nothing kept.

A record is ``(id, one of 1,000 keys, value, event time in milliseconds)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

Record = tuple[int, str, float, int]

KEYS: Final = [f"key-{number}" for number in range(1000)]
START_MS: Final = 1_700_000_000_000
JITTER_MS: Final = 2000
WINDOW_MS: Final = 1000

# Event time advances by a millisecond every so many records: ten records per key in
# each window of a second.
RECORDS_PER_MS: Final = 10


def records(count: int) -> Iterator[Record]:
    """Yield records in the order of their event times."""
    keys = KEYS
    for i in range(count):
        yield (i, keys[i % 1000], i * 0.5, START_MS + i // RECORDS_PER_MS)


def jittered(count: int, per_ms: int = RECORDS_PER_MS) -> Iterator[Record]:
    """Yield records up to two seconds out of order, the same ones each time."""
    keys = KEYS
    for i in range(count):
        late = i * 7919 % (JITTER_MS + 1)
        yield (i, keys[i % 1000], i * 0.5, START_MS + i // per_ms - late)


def double(record: Record) -> Record:
    """Double the value: the first map of W1."""
    return (record[0], record[1], record[2] * 2, record[3])


def is_even(record: Record) -> bool:
    """Half of the records pass: the filter of W1."""
    return record[0] % 2 == 0


def value_of(record: Record) -> float:
    """Return the value: the second map of W1."""
    return record[2]


def key_of(record: Record) -> str:
    """Return the key."""
    return record[1]


def time_of(record: Record) -> int:
    """Return the event time in milliseconds."""
    return record[3]
