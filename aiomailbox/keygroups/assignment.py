"""Which key group a key is in, which subtask owns a key group, and a memory of both.

Theory of operation: ``1``, ``1.0`` and ``True`` are one key of a dict but three keys
of a stream, so a cache by key is right only while all keys have one type. The first
key fixes that type (of a tuple: the type at each position), and a run is checked by
the set of its types, once per run and not per key.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from operator import mul
from typing import Any, Final, NamedTuple

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


# The key groups of many keys at once, for keys that no cache can remember.
#
# Theory of operation: the codes of all keys lie side by side in one large integer, each
# in the lower half of a lane of 64 bits, so that a product with a constant of 32 bits
# stays in its lane. One operation on that integer is one step of the hash for all keys,
# and costs some nanoseconds for each instead of the interpreter's forty.


_LANE_BYTES: Final = 8
# Below, or with longer texts, the loop over single keys is as fast.
_KEYS_MIN: Final = 4
_CHARACTERS_MAX: Final = 64
# A code of 32 bits grows by five with each factor of 31.
_STEPS_PER_MASK: Final = 6


def key_groups_of(keys: list[Any], max_parallelism: int) -> list[int]:
    """Return the key group of each key, of keys that are all of one type.

    Args:
        keys: As `hash_code` takes them; a float is not ``-0.0``.
        max_parallelism: Number of key groups.

    Raises:
        KeyTypeError: If a key cannot be placed.

    Example:
        >>> key_groups_of(["hello", "a", "b", "c", "d"], 128)[:2]
        [35, 81]
    """
    codes = None
    if len(keys) >= _KEYS_MIN:
        kind = type(keys[0])
        if kind is str:
            codes = _string_codes(keys)
        elif kind is int:
            codes = _int_codes(keys)
    if codes is None:
        codes = _packed([hash_code(key) & _MASK_32 for key in keys])
    return [
        (value if value < 0x80000000 else (0x100000000 - value) & 0x7FFFFFFF)
        % max_parallelism
        for value in _murmur(codes, len(keys))
    ]


def _packed(codes: list[int]) -> int:
    return int.from_bytes(struct.pack(f"<{len(codes)}Q", *codes), "little")


def _repeated(value: int, count: int) -> int:
    """Return a value of at most 32 bits in each of so many lanes."""
    return int.from_bytes(value.to_bytes(_LANE_BYTES, "little") * count, "little")


def _int_codes(keys: list[int]) -> int | None:
    if max(keys) > _INT64_MAX or min(keys) < -_INT64_MAX - 1:
        return None
    return _packed([(key ^ key >> 32) & _MASK_32 for key in keys])


def _string_codes(keys: list[str]) -> int | None:
    """Return Java's hash codes of texts that are short and of ASCII only."""
    length = max(map(len, keys))
    if length > _CHARACTERS_MAX:
        return None
    # What stands in front and is zero changes no polynomial.
    padded = "".join([key.rjust(length, "\0") for key in keys])
    if not padded.isascii():
        return None
    data, count = padded.encode("ascii"), len(keys)
    mask = _repeated(_MASK_32, count)
    column = bytearray(_LANE_BYTES * count)
    codes = 0
    for position in range(length):
        column[::_LANE_BYTES] = data[position::length]
        codes = codes * 31 + int.from_bytes(column, "little")
        if position % _STEPS_PER_MASK == _STEPS_PER_MASK - 1:
            codes &= mask
    return codes & mask


def _murmur(codes: int, count: int) -> tuple[int, ...]:
    """Return murmur's hash of each code, before its sign is dropped."""
    mask = _repeated(_MASK_32, count)
    mixed = codes * 0xCC9E2D51 & mask
    mixed = (mixed << 15 | mixed >> 17) & mask
    mixed = mixed * 0x1B873593 & mask
    mixed = (mixed << 13 | mixed >> 19) & mask
    mixed = mixed * 5 + _repeated(0xE6546B64, count) & mask
    mixed ^= _repeated(4, count)
    # What a shift brings in from the next lane is beyond the lower half.
    mixed ^= mixed >> 16 & mask
    mixed = mixed * 0x85EBCA6B & mask
    mixed ^= mixed >> 13 & mask
    mixed = mixed * 0xC2B2AE35 & mask
    mixed ^= mixed >> 16 & mask
    return struct.unpack(f"<{count}Q", mixed.to_bytes(_LANE_BYTES * count, "little"))


CACHE_ENTRIES_MAX = 65_536
# The type of a key: a type, or for a tuple the shapes of its elements.
_Shape = type | tuple[Any, ...]


class _Cache(dict[Any, int]):
    """A dict that computes what it misses and starts afresh when it is full."""

    def __init__(self, compute: Callable[[Any], int], entries_max: int) -> None:
        super().__init__()
        self._compute = compute
        self._entries_max = entries_max

    def __missing__(self, key: Any) -> int:
        value = self._compute(key)
        # Forgetting everything costs one recomputation per live key and no
        # bookkeeping on a hit, which an eviction order would need.
        if len(self) >= self._entries_max:
            self.clear()
        self[key] = value
        return value

    def remember(self, keys: list[Any], values: list[int]) -> None:
        """Add many, of which only so many are kept as there is room for."""
        if len(self) + len(keys) > self._entries_max:
            self.clear()
        most = self._entries_max
        self.update(zip(keys[:most], values[:most], strict=True))


class KeyTypeAgreement:
    """The key type of a stream whose keys several assigners place.

    Attributes:
        shape: The type of the first key that any of them saw, or None before it.
        given_by: What the first key was, for errors.
        remedy: What to do about another type, for errors.
    """

    def __init__(self) -> None:
        self.shape: _Shape | None = None
        self.given_by: str = "the first key of this stream had"
        self.remedy: str = (
            "Convert in the key function, so that all keys have one type."
        )


class KeyGroupAssigner:
    """Places the keys of one keyed stream, as seen by one task.

    The first key fixes the stream's key type. ``-0.0`` is placed like ``0.0`` here,
    since Python cannot tell them apart as keys of state; NaN is refused, since it
    would never be found again.

    Args:
        parallelism: Number of subtasks that the keys are spread over.
        max_parallelism: Number of key groups.
        cache_entries_max: Keys remembered at most.
        agreement: Shared with other assigners of the same stream, whose keys must be
            of the same type; None for an assigner that sees all keys.

    Raises:
        InvalidArgumentError: If the parallelisms do not fit, or the cache has no room.

    Invariants:
        Each cache holds at most ``cache_entries_max`` entries.

    Concept:
        Flink, ``KeyGroupStreamPartitioner``.

    Example:
        >>> assigner = KeyGroupAssigner(parallelism=4, max_parallelism=128)
        >>> assigner.channels(["a", "key1", "a"])
        [2, 1, 2]
        >>> assigner.key_group_of("a")
        81
    """

    def __init__(
        self,
        parallelism: int,
        max_parallelism: int,
        *,
        cache_entries_max: int = CACHE_ENTRIES_MAX,
        agreement: KeyTypeAgreement | None = None,
    ) -> None:
        check_parallelism(parallelism, max_parallelism)
        if cache_entries_max < 1:
            raise InvalidArgumentError(
                "cache_entries_max", f"{cache_entries_max} is less than 1"
            )
        self.parallelism: int = parallelism
        self.max_parallelism: int = max_parallelism
        self._groups = _Cache(self._compute_group, cache_entries_max)
        self._channels = _Cache(self._compute_channel, cache_entries_max)
        self._type: type | None = None
        self._shape: _Shape | None = None
        self._agreement = agreement or KeyTypeAgreement()

    @property
    def key_type(self) -> str | None:
        """The stream's key type as text, or None before the first key."""
        return None if self._shape is None else _shape_name(self._shape)

    def expect(self, key: Any) -> None:
        """Let keys have the type of one that was restored."""
        agreement = self._agreement
        agreement.given_by = "the keys of the state that was restored have"
        agreement.remedy = (
            "Convert in the key function to that type: under keys of another one, the "
            "state of the checkpoint or savepoint is never found. Or give the operator "
            "another uid, and restore with allow_unmatched_state=True, which drops "
            "its state."
        )
        self._check(key)

    def key_group_of(self, key: Any) -> int:
        """Return the key group of a key.

        Raises:
            KeyTypeError: If the key has another type than the stream's first key, or
                one that cannot be placed.
        """
        if type(key) is not self._type or self._type is tuple:
            self._check(key)
        return self._groups[key]

    def channels(self, keys: list[Any]) -> list[int]:
        """Return the owning subtask of each key of a run.

        Args:
            keys: Shape ``(n,)``; may be empty.

        Returns:
            Shape ``(n,)``, in the order of the keys.

        Raises:
            KeyTypeError: If a key has another type than the stream's first key, or
                one that cannot be placed.

        Cost:
            One type lookup and one dict lookup per key that is remembered.
        """
        self._check_run(keys)
        return self._look_up(self._channels, keys, self._compute_channels)

    def key_groups(self, keys: list[Any]) -> list[int]:
        """Return the key group of each key of a run; like `channels` otherwise."""
        self._check_run(keys)
        return self._look_up(self._groups, keys, self._compute_groups)

    def key_groups_once(self, keys: list[Any]) -> list[int]:
        """Do as `key_groups`, for keys that come once: none is remembered."""
        self._check_run(keys)
        return self._compute_groups(keys)

    @staticmethod
    def _look_up(
        remembered: _Cache, keys: list[Any], compute: Callable[[list[Any]], list[int]]
    ) -> list[int]:
        found: list[Any] = list(map(remembered.get, keys))
        if None in found:
            missing = [key for key in keys if key not in remembered]
            values = compute(missing)
            remembered.remember(missing, values)
            rest = iter(values)
            found = [next(rest) if value is None else value for value in found]
        return found

    def _check_run(self, keys: list[Any]) -> None:
        if not keys:
            return
        if self._shape is None:
            self._check(keys[0])
        fits = set(map(type, keys)) == {self._type}
        if fits and self._type is tuple:
            fits = _columns_fit(keys, self._shape)
        if not fits:
            for key in keys:
                self._check(key)

    def _check(self, key: Any) -> None:
        """Fix the stream's key type by its first key, or compare with it."""
        agreement, shape = self._agreement, _shape_of(key)
        if agreement.shape is None:
            hash_code(key)
            agreement.shape = shape
        elif shape != agreement.shape:
            raise KeyTypeError(
                "key",
                f"{key!r} has the type {_shape_name(shape)}, but {agreement.given_by} "
                f"the type {_shape_name(agreement.shape)}",
                agreement.remedy,
            )
        if self._shape is None:
            self._shape = shape
            self._type = type(key)

    def _compute_group(self, key: Any) -> int:
        if type(key) is float or type(key) is tuple:
            key = normalized_key(key)
        return key_group_of_hash(hash_code(key), self.max_parallelism)

    def _compute_groups(self, keys: list[Any]) -> list[int]:
        if self._type is float or self._type is tuple:
            keys = list(map(normalized_key, keys))
        return key_groups_of(keys, self.max_parallelism)

    def _compute_channels(self, keys: list[Any]) -> list[int]:
        parallelism, most = self.parallelism, self.max_parallelism
        return [
            operator_index(group, parallelism, most)
            for group in self._compute_groups(keys)
        ]

    def _compute_channel(self, key: Any) -> int:
        group = self._compute_group(key)
        return operator_index(group, self.parallelism, self.max_parallelism)


def _shape_of(key: Any) -> _Shape:
    return tuple(map(_shape_of, key)) if type(key) is tuple else type(key)


def _shape_name(shape: Any) -> str:
    if isinstance(shape, tuple):
        return f"tuple[{', '.join(map(_shape_name, shape)) or '()'}]"
    return str(shape.__qualname__)


def _columns_fit(keys: list[Any], shape: Any) -> bool:
    """Say whether tuples of one length have the expected type at each position."""
    if set(map(len, keys)) != {len(shape)}:
        return False
    for column, expected in zip(zip(*keys, strict=True), shape, strict=True):
        nested = isinstance(expected, tuple)
        if set(map(type, column)) != {tuple if nested else expected}:
            return False
        if nested and not _columns_fit(list(column), expected):
            return False
    return True


def normalized_key(key: Any) -> Any:
    """Map keys that Python holds equal to one key, and refuse the one it does not.

    Raises:
        KeyTypeError: If the key is NaN, or a tuple that holds it.

    Example:
        >>> normalized_key((-0.0, "a"))
        (0.0, 'a')
    """
    if type(key) is float:
        if key != key:
            raise KeyTypeError(
                "key",
                "NaN is not equal to itself, so its state could not be found again",
                "Filter it out, or key by a string.",
            )
        return key + 0.0
    return tuple(map(normalized_key, key)) if type(key) is tuple else key
