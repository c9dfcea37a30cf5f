"""A task's bounded memory of where its keys live.

Theory of operation: ``1``, ``1.0`` and ``True`` are one key of a dict but three keys
of a stream, so a cache by key is right only while all keys have one type. The first
key fixes that type (of a tuple: the type at each position), and a run is checked by
the set of its types, once per run and not per key.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from aiomailbox.errors import InvalidArgumentError, KeyTypeError
from aiomailbox.keygroups.assignment import (
    check_parallelism,
    hash_code,
    key_group_of_hash,
    operator_index,
)

# The key groups of many keys at once, for keys that no cache can remember.
#
# Theory of operation: the codes of all keys lie side by side in one large integer, each
# in the lower half of a lane of 64 bits, so that a product with a constant of 32 bits
# stays in its lane. One operation on that integer is one step of the hash for all keys,
# and costs some nanoseconds for each instead of the interpreter's forty.


_MASK_32: Final = 0xFFFFFFFF


_INT64_MAX: Final = 2**63 - 1


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
