"""The key groups of many keys at once, for keys that no cache can remember.

Theory of operation: the codes of all keys lie side by side in one large integer, each in
the lower half of a lane of 64 bits, so that a product with a constant of 32 bits stays
in its lane. One operation on that integer is one step of the hash for all keys, and
costs some nanoseconds for each instead of the interpreter's forty.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from aiomailbox.keygroups.hashing import hash_code

__all__ = ["key_groups_of"]

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
