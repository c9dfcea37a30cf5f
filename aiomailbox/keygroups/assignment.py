"""Which key group a key is in, and which subtask owns a key group."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from operator import mul
from typing import Any, NamedTuple

from aiomailbox.errors import InvalidArgumentError, KeyTypeError

# Java's ``hashCode`` of the key types that a stream can be keyed by, and the mixers.
#
# Theory of operation: all results are signed 32-bit integers, as Java computes them.
# Python's own `hash()` is salted per process and never decides where a key lives.


_MASK_32 = 0xFFFFFFFF


_MASK_64 = 0xFFFFFFFFFFFFFFFF


_INT64_MIN = -(2**63)


_INT64_MAX = 2**63 - 1


_CANONICAL_NAN_BITS = 0x7FF8000000000000


_DOUBLE = struct.Struct(">d")


_LONG_BITS = struct.Struct(">Q")


_UTF_16_NATIVE = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"


# Powers of 31 modulo 2**32, highest first: a chunk of n terms uses _POWERS[-n:].
_CHUNK = 64


# Up to here a plain loop beats the table (measured: 0.23 to 0.42 us for 6 bytes).
_SHORT = 24


_POWERS = [pow(31, _CHUNK - 1 - index, 2**32) for index in range(_CHUNK)]


_POWERS_OF_LENGTH = [_POWERS[_CHUNK - length :] for length in range(_CHUNK + 1)]


def hash_code(key: Any) -> int:
    """Return what Java's ``hashCode`` gives for a key, as a signed 32-bit integer.

    An `int` is hashed as a Long, a `float` as a Double, a `bool` as a Boolean, `bytes`
    like ``Arrays.hashCode(byte[])`` and a `tuple` like Flink's ``TupleN``
    (``31 * h + element`` from 0). ``-0.0`` and ``0.0`` hash apart, as in Java.

    Args:
        key: A value of exactly one of those types; tuples hold such values only.

    Raises:
        KeyTypeError: If the key has another type, or is an int beyond 64 bits.

    Concept:
        Flink, ``KeyGroupRangeAssignment.assignToKeyGroup`` calls ``key.hashCode()``.

    Example:
        >>> hash_code("hello"), hash_code(True), hash_code(-1)
        (99162322, 1231, 0)
    """
    hasher = _HASHERS.get(type(key))
    if hasher is None:
        raise _unplaceable(key)
    return hasher(key)


def int32_hash_code(value: int) -> int:
    """Return ``Integer.hashCode``: the value itself, which differs from a Long's below 0.

    Args:
        value: A signed 32-bit integer.

    Raises:
        KeyTypeError: If the value does not fit in 32 bits.
    """
    if not -(2**31) <= value < 2**31:
        raise KeyTypeError("value", f"{value} does not fit in 32 bits")
    return value


def _signed(value: int) -> int:
    value &= _MASK_32
    return value - 0x100000000 if value & 0x80000000 else value


def _polynomial(terms: Any, length: int, seed: int) -> int:
    """Fold ``h = 31 * h + term`` over ``length`` small integers, modulo 2**32."""
    if length <= _CHUNK:
        # One pass in C over products, where a loop multiplies at each step.
        powers = _POWERS_OF_LENGTH[length]
        total: int = sum(map(mul, terms, powers))
        return total + seed * powers[0] * 31 if seed and length else total + seed
    total = seed
    for start in range(0, length, _CHUNK):
        chunk = terms[start : start + _CHUNK]
        # The remainder at each chunk keeps the numbers small.
        total = _polynomial(chunk, len(chunk), total & _MASK_32)
    return total


def _hash_str(key: str) -> int:
    if key.isascii():
        units: Any = key.encode("ascii")
        if len(units) <= _SHORT:
            total = 0
            for unit in units:
                total = 31 * total + unit
            return _signed(total)
    else:
        # Lone surrogates are legal in a Java String and hash by their code unit.
        raw = key.encode(_UTF_16_NATIVE, "surrogatepass")
        units = memoryview(raw).cast("H")
    return _signed(_polynomial(units, len(units), 0))


def _hash_int(key: int) -> int:
    if not _INT64_MIN <= key <= _INT64_MAX:
        raise KeyTypeError(
            "key",
            f"the int {key} is beyond 64 bits",
            "Key by str(key) or by a value within -2**63 .. 2**63 - 1.",
        )
    # As `Long.hashCode`: ints are 64 bits wide, also small ones.
    bits = key & _MASK_64
    return _signed(bits ^ (bits >> 32))


def _hash_float(key: float) -> int:
    bits = _CANONICAL_NAN_BITS
    if key == key:
        bits = _LONG_BITS.unpack(_DOUBLE.pack(key))[0]
    return _signed(bits ^ (bits >> 32))


def _hash_bool(key: bool) -> int:
    return 1231 if key else 1237


def _hash_bytes(key: bytes) -> int:
    # Signed bytes and a seed of 1: `Arrays.hashCode(byte[])`.
    return _signed(_polynomial(memoryview(key).cast("b"), len(key), 1))


def _hash_tuple(key: tuple[Any, ...]) -> int:
    total = 0
    for element in key:
        total = 31 * total + hash_code(element)
    return _signed(total)


_HASHERS: dict[type, Callable[[Any], int]] = {
    str: _hash_str,
    int: _hash_int,
    float: _hash_float,
    bool: _hash_bool,
    bytes: _hash_bytes,
    tuple: _hash_tuple,
}


def _unplaceable(key: object) -> KeyTypeError:
    name = type(key).__qualname__
    allowed = "str, int, float, bool, bytes, or a tuple of these"
    if key is None:
        problem, remedy = "None has no place", f"Filter it out, or key by {allowed}."
    elif isinstance(key, (list, bytearray)):
        fixed = "bytes" if isinstance(key, bytearray) else "tuple"
        problem = f"a {name} can change, so it cannot be a key"
        remedy = f"Key by {fixed}(key)."
    else:
        base = next((kind for kind in _HASHERS if isinstance(key, kind)), None)
        problem = f"a key of type {name} has no hash that is the same in every process"
        remedy = f"Key by {allowed}, e.g. by {_placeable(key)}."
        if base is not None:
            problem = f"{name} is a subclass of {base.__name__}, not {base.__name__}"
            remedy = f"Key by {base.__name__}(key)."
    return KeyTypeError("key", problem, remedy)


def _placeable(key: object) -> str:
    """Return what to write for a key of another type: the same in every process."""
    kind = type(key)
    if hasattr(key, "isoformat"):
        return "key.isoformat()"
    if isinstance(key, set | frozenset):
        return "tuple(sorted(key))"
    if isinstance(key, dict):
        return "tuple(sorted(key.items()))"
    if (kind.__str__, kind.__repr__) == (object.__str__, object.__repr__):
        # Its text has its address.
        return "one of its attributes"
    return "str(key)"


def murmur_hash(code: int) -> int:
    """Return Flink's murmur hash of a 32-bit code: 0 to ``2**31 - 1``.

    Args:
        code: A signed 32-bit integer, such as `hash_code` gives.

    Example:
        >>> murmur_hash(0)
        593689054
    """
    mixed = ((code & _MASK_32) * 0xCC9E2D51) & _MASK_32
    mixed = ((mixed << 15) | (mixed >> 17)) & _MASK_32
    mixed = (mixed * 0x1B873593) & _MASK_32
    mixed = ((mixed << 13) | (mixed >> 19)) & _MASK_32
    # 4: the length in bytes, as murmur ends with it.
    mixed = ((mixed * 5 + 0xE6546B64) & _MASK_32) ^ 4
    # As `bit_mix`, written out: this is done for every new key.
    mixed ^= mixed >> 16
    mixed = (mixed * 0x85EBCA6B) & _MASK_32
    mixed ^= mixed >> 13
    mixed = (mixed * 0xC2B2AE35) & _MASK_32
    mixed ^= mixed >> 16
    # As `MathUtils.murmurHash`, for which the smallest int is 0.
    return mixed if mixed < 0x80000000 else (0x100000000 - mixed) & 0x7FFFFFFF


def bit_mix(code: int) -> int:
    """Return murmur's finalizer of a 32-bit integer, signed."""
    mixed = code & _MASK_32
    mixed ^= mixed >> 16
    mixed = (mixed * 0x85EBCA6B) & _MASK_32
    mixed ^= mixed >> 13
    mixed = (mixed * 0xC2B2AE35) & _MASK_32
    return _signed(mixed ^ (mixed >> 16))


def jenkins_hash(code: int) -> int:
    """Return Flink's Jenkins hash of a 32-bit integer: 0 to ``2**31 - 1``."""
    mixed = code & _MASK_32
    mixed = (mixed + 0x7ED55D16 + (mixed << 12)) & _MASK_32
    mixed = mixed ^ 0xC761C23C ^ (mixed >> 19)
    mixed = (mixed + 0x165667B1 + (mixed << 5)) & _MASK_32
    mixed = (mixed + 0xD3A2646C) & _MASK_32 ^ ((mixed << 9) & _MASK_32)
    mixed = (mixed + 0xFD7046C5 + (mixed << 3)) & _MASK_32
    mixed = _signed(mixed ^ 0xB55A4F09 ^ (mixed >> 16))
    return mixed if mixed >= 0 else ~mixed


def long_to_int_with_bit_mixing(value: int) -> int:
    """Fold a signed 64-bit integer into a well mixed signed 32-bit one."""
    mixed = value & _MASK_64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return _signed(mixed ^ (mixed >> 31))


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
