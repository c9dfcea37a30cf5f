"""Declared record types: checked where they are declared, and nowhere else."""

from __future__ import annotations

from typing import Any

from aiomailbox.errors import RecordTypeError, WrongTypeError


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
            whole = getattr(record_type, "__origin__", None)
            raise WrongTypeError(
                "output_type",
                f"{record_type!r} is not a class",
                "Write e.g. int."
                if not isinstance(whole, type)
                else f"Write {whole.__name__}, and annotate the variable with the whole "
                f"type: am.DataStream[{record_type}].",
            )
        self.record_type: type = record_type
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
                f"the record {record!r} has the type {found.__name__}, but the stream declares "
                f"{self.record_type.__name__}",
                "Convert it, or declare its type.",
            )
        return record
