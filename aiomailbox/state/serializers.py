"""How the contents of a state become bytes: the default way, and pickle on request."""

from __future__ import annotations

import io
import pickle  # noqa: TID251 -- the one place of the explicit opt-in
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Protocol

from aiomailbox.errors import StateError, WrongTypeError
from aiomailbox.state.object_codec import ObjectCodec
from aiomailbox.state.state_classes import StateClasses, moved_in_library

__all__ = [
    "ObjectSerializer",
    "PickleSerializer",
    "StateSerializer",
    "check_serializer",
    "encode_all",
    "give_serializer",
    "serializer_of",
]


class StateSerializer(Protocol):
    """Turns contents into bytes and back.

    One of the user's is given to a descriptor where the function is defined, not when
    it opens: state is read back before.

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
        self.codec: ObjectCodec = ObjectCodec(classes)
        self.encode: Callable[[Any], bytes] = self.codec.encode
        self.decode: Callable[[bytes | memoryview], Any] = self.codec.decode


class PickleSerializer:
    """Keeps whatever Python can pickle; code that writes the bytes can run code.

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
        """Return the content that was pickled.

        Raises:
            StateError: If a class or function that it names is not there any more.
        """
        return _Unpickler(data, {}).load()


class _PickleReader(PickleSerializer):
    """Reads what was pickled when classes had other names.

    Args:
        declared: Classes by names that they had.
    """

    __slots__ = ("_declared",)

    def __init__(self, declared: Mapping[str, type]) -> None:
        self._declared = declared

    def decode(self, data: bytes) -> Any:
        """Return the content; see `PickleSerializer.decode`."""
        return _Unpickler(data, self._declared).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes | memoryview, declared: Mapping[str, type]) -> None:
        super().__init__(io.BytesIO(data))
        self._declared = declared

    def find_class(self, module: str, name: str) -> Any:
        declared = self._declared.get(f"{module}:{name}")
        if declared is not None:
            return declared
        try:
            return super().find_class(module, name)
        except (AttributeError, ImportError) as error:
            found = moved_in_library(module, name)
            if found is None:
                raise StateError(
                    f"pickled state names {module}:{name}, which is not there any more "
                    f"({error}). If it is a class that is in another module or has "
                    "another name now, say which: "
                    f"state_names={{'{module}:{name}': ...}}, beside restore_from=."
                ) from error
            return found


def encode_all(serializer: StateSerializer, contents: list[Any]) -> list[bytes]:
    """Return many contents as bytes, faster than one by one where that is possible."""
    if isinstance(serializer, ObjectSerializer):
        return serializer.codec.encode_all(contents)
    return [serializer.encode(content) for content in contents]


# By their ids, those of users that a descriptor has been made with.
_GIVEN: Final[dict[str, StateSerializer]] = {}


def give_serializer(serializer: StateSerializer) -> None:
    """Let state that a serializer of the user's wrote be read: a descriptor names it.

    Of two with one id the last counts.

    Raises:
        WrongTypeError: If it is no serializer, or has the id of one of ours.
    """
    given: Any = serializer
    identifier = getattr(given, "id", None)
    if isinstance(given, PickleSerializer | ObjectSerializer):
        return
    if not isinstance(identifier, str) or not identifier:
        raise WrongTypeError(
            "serializer",
            f"{given!r} has no id, which snapshots name it by",
            'Give its class an id with a version, such as id = "proto/1".',
        )
    if identifier in {ObjectSerializer.id, PickleSerializer.id}:
        raise WrongTypeError(
            "serializer",
            f"{identifier!r} is the id of another serializer",
            "Give it an id of its own.",
        )
    for method in ("encode", "decode"):
        if not callable(getattr(given, method, None)):
            raise WrongTypeError(
                "serializer",
                f"{given!r} has no method {method}",
                "See StateSerializer for the two it needs.",
            )
    _GIVEN[identifier] = serializer


def check_serializer(state: str, identifier: str) -> None:
    """Raise if nothing here can read what a serializer wrote.

    Raises:
        StateError: Naming the state.
    """
    ours = {ObjectSerializer.id, PickleSerializer.id}
    if identifier not in ours and identifier not in _GIVEN:
        raise StateError(
            f"state {state!r} was written by serializer {identifier!r}, and no "
            "descriptor here gives it. Name it in the state's descriptor where the "
            "function is defined, such as a class attribute: a descriptor that is "
            "created in open() comes too late."
        )


def serializer_of(identifier: str, objects: ObjectSerializer) -> StateSerializer:
    """Return the serializer that metadata names.

    Args:
        identifier: Its id, which is known here; see `check_serializer`.
        objects: The one to return for its own id; it remembers classes.
    """
    if identifier == ObjectSerializer.id:
        return objects
    if identifier == PickleSerializer.id:
        declared = objects.codec.classes.declared
        return _PickleReader(declared) if declared else PickleSerializer()
    return _GIVEN[identifier]
