"""Where an entry is: ``key group | state | key | namespace``, so that groups are ranges.

Both numbers take two bytes, big-endian; keys and namespaces say where they end, so no
entry's place is the beginning of another one's, and all namespaces of a key are side
by side.
"""

from __future__ import annotations

import struct
from operator import add
from typing import Any, Final

from aiomailbox.keygroups.assignment import KeyGroupAssigner, normalized_key
from aiomailbox.state.serializers import ObjectCodec

_PLACE: Final = struct.Struct(">HH")
_PLACE_BYTES: Final = _PLACE.size
# How a plain msgpack array of two begins.
_PAIR: Final = b"\x92"


class KeyCodec:
    """Encodes keys of one store, and decodes them.

    Args:
        max_parallelism: Number of key groups.
        objects: Encodes keys and namespaces.
    """

    def __init__(self, max_parallelism: int, objects: ObjectCodec) -> None:
        self._groups = KeyGroupAssigner(1, max_parallelism)
        self._objects = objects
        self._encode = objects.encode
        # By state, then by key group.
        self._prefixes: dict[int, list[bytes]] = {}

    def encode(self, state: int, key: Any) -> bytes:
        """Return the place of a key, which all its namespaces begin with."""
        if _may_be_zero(key):
            key = normalized_key(key)
        return _PLACE.pack(self._groups.key_group_of(key), state) + self._encode(key)

    def encode_pair(self, state: int, key: Any, namespace: Any) -> bytes:
        """Return the place of a key in a namespace."""
        return self.encode(state, key) + self._encode(namespace)

    def encode_all(self, state: int, keys: list[Any]) -> list[bytes]:
        """Return the places of many keys."""
        # All are of one type.
        if keys and _may_be_zero(keys[0]):
            keys = list(map(normalized_key, keys))
        groups = self._groups.key_groups(keys)
        prefixes = self._prefixes.get(state)
        if prefixes is None:
            most = self._groups.max_parallelism
            prefixes = [_PLACE.pack(group, state) for group in range(most)]
            self._prefixes[state] = prefixes
        before = map(prefixes.__getitem__, groups)
        return list(map(add, before, self._objects.encode_all(keys)))

    def decode(self, place: bytes) -> Any:
        """Return the key of a place without a namespace."""
        return self._objects.decode(place[_PLACE_BYTES:])

    def decode_pair(self, place: bytes) -> tuple[Any, Any]:
        """Return key and namespace of a place."""
        pair = self._objects.decode(_PAIR + place[_PLACE_BYTES:])
        return pair[0], pair[1]

    @staticmethod
    def prefix(group: int, state: int) -> bytes:
        """Return what all places of a state in a key group begin with."""
        return _PLACE.pack(group, state)


def _may_be_zero(key: Any) -> bool:
    """Say whether a key of this type may be, or hold, -0.0, which is one with 0.0."""
    kind = type(key)
    return kind is float or (kind is tuple and any(map(_may_be_zero, key)))


def prefix_end(prefix: bytes) -> bytes:
    r"""Return the first place behind all that begin with ``prefix``.

    Example:
        >>> prefix_end(b"a\xff")
        b'b'
    """
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""
