"""Declared record types: checked where they are declared, and nowhere else."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from aiomailbox.errors import RecordTypeError, WrongTypeError
from aiomailbox.graph import Origin
from aiomailbox.operators import OnError, RecordFields, StageKind, fail

StreamT = TypeVar("StreamT")


class RecordTypeCheck:
    """Returns each record if it is of the declared type, else raises.

    Args:
        record_type: The type; instances of subclasses are of it too, but a bool is
            not an int here.
        place: Where it was declared, for the message.

    Example:
        >>> RecordTypeCheck(int, "numbers")(7)
        7
    """

    __slots__ = ("_place", "record_type")

    def __init__(self, record_type: type, place: str) -> None:
        if not isinstance(record_type, type):
            raise WrongTypeError(
                "output_type", f"{record_type!r} is not a class", "Write e.g. int."
            )
        self.record_type = record_type
        self._place = place

    def __call__(self, record: Any) -> Any:
        """Return ``record``.

        Raises:
            RecordTypeError: If it is of another type.
        """
        found = type(record)
        if found is self.record_type:
            return record
        if not isinstance(record, self.record_type) or found is bool:
            raise RecordTypeError(
                self._place,
                f"the record {record!r} is of type {found.__name__}, declared is "
                f"{self.record_type.__name__}",
                "Convert it, or declare the type that comes.",
            )
        return record


class DeclaredType(Generic[StreamT]):
    """The method of streams that declares the type of the records."""

    _origins: list[Origin]

    def _stateless(self, kind: StageKind, function: Any, on_error: OnError) -> StreamT:
        raise TypeError(f"{type(self).__name__} does not define _stateless")

    def checked(self, output_type: type | None) -> StreamT:
        """Declare the type of the records: one of another type fails the job.

        Args:
            output_type: A class, or None to declare nothing.

        Raises:
            WrongTypeError: If it is neither.
        """
        if output_type is None:
            unchanged: Any = self
            return unchanged  # type: ignore[no-any-return]
        check = RecordTypeCheck(output_type, self._origins[0].transformation.name)
        stream: Any = self._stateless(StageKind.MAP, check, fail)
        item = stream._origins[0].transformation
        item.record_fields = RecordFields.of_type(output_type)
        item.follows_input = item.is_part_of_input = True
        return stream  # type: ignore[no-any-return]
