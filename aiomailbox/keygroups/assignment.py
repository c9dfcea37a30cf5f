"""Which key group a key is in, and which subtask owns a key group."""

from __future__ import annotations

from typing import Any, NamedTuple

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.keygroups.hashing import hash_code, murmur_hash

__all__ = [
    "DEFAULT_LOWER_BOUND_MAX_PARALLELISM",
    "UPPER_BOUND_MAX_PARALLELISM",
    "KeyGroupRange",
    "check_parallelism",
    "default_max_parallelism",
    "key_group",
    "key_group_of_hash",
    "key_group_range",
    "operator_index",
]

DEFAULT_LOWER_BOUND_MAX_PARALLELISM = 128
UPPER_BOUND_MAX_PARALLELISM = 32_768


class KeyGroupRange(NamedTuple):
    """A run of key groups, both ends inclusive.

    Concept:
        Flink, ``KeyGroupRange``.

    Example:
        >>> 40 in KeyGroupRange(0, 42).key_groups
        True
    """

    start: int
    end: int

    @property
    def key_groups(self) -> range:
        """The key groups of this range, in order."""
        return range(self.start, self.end + 1)

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange | None:
        """Return what both ranges hold, or None if that is nothing."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return KeyGroupRange(start, end) if start <= end else None


def check_parallelism(parallelism: int, max_parallelism: int) -> None:
    """Check that a number of subtasks fits a number of key groups.

    Raises:
        InvalidArgumentError: If either is outside 1 .. 32768, or there are more
            subtasks than key groups.
    """
    _check_bounds("parallelism", parallelism)
    _check_bounds("max_parallelism", max_parallelism)
    if parallelism > max_parallelism:
        raise InvalidArgumentError(
            "parallelism",
            f"{parallelism} subtasks cannot share {max_parallelism} key groups",
            f"Use at most {max_parallelism}, or a larger max_parallelism.",
        )


def key_group_of_hash(code: int, max_parallelism: int) -> int:
    """Return the key group of a key's 32-bit hash code."""
    return murmur_hash(code) % max_parallelism


def key_group(key: Any, max_parallelism: int) -> int:
    """Return the key group of a key: 0 to ``max_parallelism - 1``.

    The group depends on the key and on ``max_parallelism`` only, never on the process
    or on the parallelism.

    Raises:
        InvalidArgumentError: If ``max_parallelism`` is outside 1 .. 32768.
        KeyTypeError: If the key cannot be placed; see `hash_code`.

    Concept:
        Flink, ``KeyGroupRangeAssignment.assignToKeyGroup``.

    Example:
        >>> key_group("hello", 128)
        35
    """
    _check_bounds("max_parallelism", max_parallelism)
    return murmur_hash(hash_code(key)) % max_parallelism


def operator_index(group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the subtask that owns a key group.

    Args:
        group: A key group, 0 to ``max_parallelism - 1``.
        parallelism: Number of subtasks now.
        max_parallelism: Number of key groups, fixed for the life of the state.

    Example:
        >>> operator_index(81, 4, 128)
        2
    """
    return group * parallelism // max_parallelism


def key_group_range(
    max_parallelism: int, parallelism: int, index: int
) -> KeyGroupRange:
    """Return the key groups that a subtask owns.

    Args:
        max_parallelism: Number of key groups.
        parallelism: Number of subtasks.
        index: The subtask, from 0. Flink does not check its upper end, and neither
            does this: an index of ``parallelism`` or more gives groups that no key
            is in.

    Raises:
        InvalidArgumentError: If the parallelisms do not fit, or the index is negative.

    Example:
        >>> key_group_range(128, 3, 1)
        KeyGroupRange(start=43, end=85)
    """
    check_parallelism(parallelism, max_parallelism)
    if index < 0:
        raise InvalidArgumentError("index", f"{index} is negative", "Count from 0.")
    # Rounded up, so that it is the inverse of `operator_index`.
    start = (index * max_parallelism + parallelism - 1) // parallelism
    end = ((index + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def default_max_parallelism(parallelism: int) -> int:
    """Return the number of key groups that leaves room to rescale.

    Half as many again as there are subtasks, rounded up to a power of two, between
    128 and 32768.

    Raises:
        InvalidArgumentError: If ``parallelism`` is outside 1 .. 32768.

    Example:
        >>> default_max_parallelism(100)
        256
    """
    _check_bounds("parallelism", parallelism)
    wished = parallelism + parallelism // 2
    # To a power of two above one and a half times as many, as in Flink.
    power = 1 << (wished - 1).bit_length()
    return min(
        max(power, DEFAULT_LOWER_BOUND_MAX_PARALLELISM), UPPER_BOUND_MAX_PARALLELISM
    )


def _check_bounds(parameter: str, value: int) -> None:
    if not 0 < value <= UPPER_BOUND_MAX_PARALLELISM:
        raise InvalidArgumentError(
            parameter,
            f"{value} is out of bounds",
            f"Use 1 to {UPPER_BOUND_MAX_PARALLELISM}.",
        )
