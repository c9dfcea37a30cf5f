"""Names and settings of the operator that made a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Self

from aiomailbox.api.build import check_count, check_max_parallelism, check_name
from aiomailbox.api.definition import JobDefinition
from aiomailbox.errors import InvalidArgumentError, UsageError, WrongTypeError
from aiomailbox.graph import ChainingStrategy, Origin, Transformation


class OperatorSettings:
    """Methods that say something about the operator behind a stream.

    Each returns the stream itself, so that calls can be chained.
    """

    _definition: JobDefinition
    _origins: list[Origin]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say what is missing where a verb of keyed streams is used without a key.

            Raises:
                AttributeError: Always.
            """
            kind = type(self)
            text = f"{kind.__name__!r} object has no attribute {name!r}"
            if any(hasattr(keyed, name) for keyed in kind.__subclasses__()):
                text = f"{name} needs a key: write stream.key_by(...).{name}(...)"
            raise AttributeError(text, name=name, obj=self)

    def name(self, name: str) -> Self:
        """Name the operator that made this stream."""
        self._operator.name = check_name(name, "name")
        return self

    def uid(self, uid: str) -> Self:
        """Give the operator a stable name, under which its state is found again."""
        self._operator.uid = check_name(uid, "uid")
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Run the operator that made this stream in so many subtasks."""
        self._operator.parallelism = check_count(parallelism, "parallelism")
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Give the operator so many key groups."""
        self._operator.max_parallelism = check_max_parallelism(max_parallelism)
        return self

    def slot_sharing_group(self, name: str) -> Self:
        """Keep the operator, and those that follow it, apart from other groups.

        Operators of different groups share no task. A deployment over several
        processes gives groups workers of their own.

        Args:
            name: The group's name; ``"default"`` is the one of all who say nothing and
                whose inputs are in several groups, or nowhere.
        """
        self._operator.slot_sharing_group = check_name(name, "name")
        return self

    def disable_chaining(self) -> Self:
        """Give the operator a task of its own."""
        self._operator.chaining = ChainingStrategy.NEVER
        return self

    def start_new_chain(self) -> Self:
        """Begin a new task with the operator."""
        self._operator.chaining = ChainingStrategy.HEAD
        return self

    @property
    def _operator(self) -> Transformation:
        origins = self._origins
        while len(origins) == 1 and origins[0].tag is None:
            item = origins[0].transformation
            if not item.is_part_of_input:
                return item
            origins = item.inputs[0]
        message = (
            "this stream is a union or a side output: name, uid and settings "
            "belong to an operator; set them on the stream that an operator made"
        )
        raise UsageError(message)

    def _check_joinable(self, other: object, parameter: str) -> None:
        """Raise if ``other`` is not a stream, or one of another environment."""
        if not isinstance(other, OperatorSettings):
            raise WrongTypeError(parameter, f"{other!r} is not a stream")
        if other._definition is not self._definition:
            raise InvalidArgumentError(
                parameter,
                "the stream belongs to another environment",
                "Make both streams from one StreamExecutionEnvironment.",
            )
