"""Reads the keys of a run and holds them to the stream's key type."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import CoroutineType
from typing import Any, Final, NoReturn

from aiomailbox.errors import KeyTypeError, RecordTypeError, add_note
from aiomailbox.keygroups.assigner import KeyGroupAssigner
from aiomailbox.metrics.hot_keys import HotKeys
from aiomailbox.operators.core.failures import USER_ERRORS, raise_as
from aiomailbox.operators.core.fields import FieldSelector, FieldsSelector
from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.core.user_code import describe, refuse_coroutine
from aiomailbox.records.mapping import map_all

# Keys of these types are good whatever their value is.
_ALWAYS_PLACED: Final = frozenset({str, bytes, bool})
_FIELD_ERRORS: Final = (AttributeError, KeyError, TypeError)


class KeyCheck:
    """Reads the key of a record, raises if it has none, and else returns True.

    Before a keyed stream it finds the records whose key cannot be read, or has another
    type than the first, while they can still be set aside one by one.

    Args:
        key: A function of a record.
        assigner: Knows the type of keys; None for one of its own.

    Example:
        >>> KeyCheck(len)("abc")
        True
    """

    __slots__ = ("_assigner", "key")

    def __init__(
        self, key: Callable[[Any], Any], assigner: KeyGroupAssigner | None = None
    ) -> None:
        self.key: Callable[[Any], Any] = key
        self._assigner = assigner or KeyGroupAssigner(1, 1)

    def __call__(self, record: Any) -> bool:
        """Return True.

        Raises:
            KeyTypeError: If what the key function gave cannot be a key, or is of
                another type than the first.
        """
        key = self.key(record)
        if type(key) is CoroutineType:
            refuse_coroutine(key, self.key)
        self._assigner.key_group_of(key)
        return True


class KeyReader:
    """Applies the key function of an operator to whole runs.

    The first key, or one that was restored, fixes the type of all others, and what may be a key at all is for
    `KeyGroupAssigner` to say.

    Args:
        key: A `FieldSelector` or a function of a record.
        operator: Named in errors.
        like: A reader of another input, whose keys are of the same type.

    Cost:
        One call of the key function per record, and one look at the type.

    Example:
        >>> from aiomailbox.operators.stateless.operators import MapOperator
        >>> from aiomailbox.testing import OneInputHarness
        >>> operator = OneInputHarness(MapOperator(str)).operator
        >>> KeyReader(str.lower, operator).read(["A", "b"])
        ['a', 'b']
    """

    __slots__ = ("_assigner", "_hot", "_key", "_operator", "_type", "_types")

    def __init__(
        self,
        key: Callable[[Any], Any],
        operator: Operator,
        like: KeyReader | None = None,
    ) -> None:
        self._key = key
        self._operator = operator
        # One for all readers of an operator: both inputs have to have keys of one type.
        self._assigner: KeyGroupAssigner = (
            KeyGroupAssigner(1, operator.context.max_parallelism)
            if like is None
            else like._assigner
        )
        self._type: type | None = None
        self._types: set[type] = set()
        restored = operator.context.keyed_state.restored_key
        if restored is not None:
            # Keys of another type would find nothing of what was restored.
            self._assigner.key_group_of(restored)
        self._hot: HotKeys = HotKeys() if like is None else like._hot
        operator.context.metrics.hot_keys = self._hot

    def read(self, values: list[Any]) -> list[Any]:
        """Return the key of each value, in order.

        Raises:
            KeyTypeError: If a key cannot be one, or has another type than the first.
            RecordTypeError: If a record has not the field that is the key.
            UserFunctionError: If the key function raises.
        """
        keys = self._apply(values)
        self.check(keys)
        self._hot.sample(keys)
        return keys

    def check(self, keys: list[Any]) -> None:
        """Hold keys to the stream's key type, and to what may be a key.

        Raises:
            KeyTypeError: If one cannot be a key, or has another type than the first.
        """
        # A set of the types costs much less than a check of each key.
        if set(map(type, keys)) != self._types or self._type not in _ALWAYS_PLACED:
            self._check(keys)

    def _apply(self, values: list[Any]) -> list[Any]:
        key = self._key
        try:
            # Fields are read in C, by a getter for records like the first one.
            if values and isinstance(key, FieldSelector | FieldsSelector):
                # Among records of several forms each is read, and blamed, by itself.
                with contextlib.suppress(*_FIELD_ERRORS):
                    return map_all(key.getter(values[0]), values)
            return [key(value) for value in values]
        except RecordTypeError as error:
            add_note(error, f"in {self._operator.place}")
            raise
        except USER_ERRORS as error:
            raise_as(self._operator.user_error(error), error)

    def _check(self, keys: list[Any]) -> None:
        if not keys:
            return
        types = set(map(type, keys))
        if CoroutineType in types:
            self._refuse_coroutines(keys)
        # Of these all are placed if one is.
        some = keys[:1] if len(types) == 1 and types <= _ALWAYS_PLACED else keys
        try:
            self._assigner.key_groups(some)
        except KeyTypeError as error:
            problem = str(error).removeprefix("key: ").removesuffix(".")
            raise KeyTypeError(
                self._operator.place,
                f"the key of {_described(self._key)}: {problem}",
            ) from None
        self._type = type(keys[0])
        self._types = {self._type}

    def _refuse_coroutines(self, keys: list[Any]) -> NoReturn:
        for key in keys:
            # Or Python would warn of a coroutine that was never awaited.
            if type(key) is CoroutineType:
                key.close()
        raise KeyTypeError(
            self._operator.place,
            f"{describe(self._key)} returned a coroutine where a key is expected",
            "A plain function is needed here: do the awaiting in map_async before.",
        )


def _described(key: Callable[[Any], Any]) -> str:
    return (
        str(key) if isinstance(key, FieldSelector | FieldsSelector) else describe(key)
    )
