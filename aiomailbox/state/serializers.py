"""How the contents of a state become bytes: the default way, and pickle on request."""

from __future__ import annotations

import pickle  # noqa: TID251 -- the one place of the explicit opt-in
from typing import Any, ClassVar, Protocol

from aiomailbox.errors import StateError
from aiomailbox.state.object_codec import ObjectCodec
from aiomailbox.state.state_classes import StateClasses

__all__ = [
    "ObjectSerializer",
    "PickleSerializer",
    "StateSerializer",
    "encode_all",
    "serializer_of",
]


class StateSerializer(Protocol):
    """Turns contents into bytes and back.

    Attributes:
        id: Named in the metadata of snapshots, with the version of the format.
    """

    id: ClassVar[str]

    def encode(self, content: Any) -> bytes:
        """Return the content as bytes."""
        ...

    def decode(self, data: bytes) -> Any:
        """Return the content that was encoded."""
        ...


class ObjectSerializer:
    """Keeps builtins, dataclasses, structs, NamedTuples, enums and their like.

    Args:
        classes: The classes that objects may have; None for all that are written.

    Attributes:
        codec: Knows the classes met so far.

    Example:
        >>> serializer = ObjectSerializer()
        >>> serializer.decode(serializer.encode(("a", 1)))
        ('a', 1)
    """

    id: ClassVar[str] = "msgpack/2"

    __slots__ = ("codec", "decode", "encode")

    def __init__(self, classes: StateClasses | None = None) -> None:
        self.codec = ObjectCodec(classes)
        self.encode = self.codec.encode
        self.decode = self.codec.decode


class PickleSerializer:
    """Keeps whatever Python can pickle; whoever can write the bytes can run code.

    State has it only where a descriptor says ``serializer=PickleSerializer()``, and
    the metadata of every snapshot names it.

    Example:
        >>> serializer = PickleSerializer()
        >>> serializer.decode(serializer.encode(range(3)))
        range(0, 3)
    """

    id: ClassVar[str] = "pickle/5"

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PickleSerializer)

    def __hash__(self) -> int:
        return hash(self.id)

    def encode(self, content: Any) -> bytes:
        """Return the content, pickled."""
        return pickle.dumps(content, protocol=5)

    def decode(self, data: bytes) -> Any:
        """Return the content that was pickled."""
        return pickle.loads(data)


def encode_all(serializer: StateSerializer, contents: list[Any]) -> list[bytes]:
    """Return many contents as bytes, faster than one by one where that is possible."""
    if isinstance(serializer, ObjectSerializer):
        return serializer.codec.encode_all(contents)
    return [serializer.encode(content) for content in contents]


def serializer_of(identifier: str, objects: ObjectSerializer) -> StateSerializer:
    """Return the serializer that metadata names.

    Args:
        identifier: Its id.
        objects: The one to return for its own id; it remembers classes.

    Raises:
        StateError: If there is none of that id.
    """
    if identifier == ObjectSerializer.id:
        return objects
    if identifier == PickleSerializer.id:
        return PickleSerializer()
    raise StateError(
        f"the state was written by serializer {identifier!r}, which is not known here; "
        f"known are {ObjectSerializer.id!r} and {PickleSerializer.id!r}"
    )
