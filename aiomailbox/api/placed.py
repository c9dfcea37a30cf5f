"""Streams whose operator is named and placed, and whose records are sent on."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Self

from aiomailbox.api.build import check_max_parallelism, check_name
from aiomailbox.api.definition import JobDefinition, key_selector
from aiomailbox.errors import InvalidArgumentError, UsageError
from aiomailbox.exchange.writer import (
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    Partitioner,
    RebalancePartitioner,
    RescalePartitioner,
    ShufflePartitioner,
)
from aiomailbox.graph.transformation import ChainingStrategy, Origin, Transformation
from aiomailbox.operators.core.user_code import caller_location, check_function
from aiomailbox.signatures import check_count
from aiomailbox.typevars import T

if TYPE_CHECKING:
    # A stream leads to this class, and this class to a stream: only in their types.
    from aiomailbox.api.stream import DataStream


class Placed(Generic[T]):
    """The verbs of a stream about its operator, and where records go; see `DataStream`."""

    _definition: JobDefinition
    _origins: list[Origin]

    if TYPE_CHECKING:

        def _partitioned(self, partitioner: Partitioner) -> DataStream[T]: ...

    def forward(self) -> DataStream[T]:
        """Keep records in their subtask; the parallelism must be equal."""
        return self._partitioned(ForwardPartitioner())

    def rebalance(self) -> DataStream[T]:
        """Distribute records to all subtasks, round-robin."""
        return self._partitioned(RebalancePartitioner())

    def rescale(self) -> DataStream[T]:
        """Distribute records to nearby subtasks, round-robin."""
        return self._partitioned(RescalePartitioner())

    def shuffle(self) -> DataStream[T]:
        """Send each record to a subtask chosen at random."""
        return self._partitioned(ShufflePartitioner())

    def global_(self) -> DataStream[T]:
        """Send every record to the first subtask."""
        return self._partitioned(GlobalPartitioner())

    def partition_custom(
        self, partitioner: Callable[[Any, int], int], key: str | Callable[[T], Any]
    ) -> DataStream[T]:
        """Send each record to the subtask that ``partitioner(key, count)`` returns."""
        check_function(
            partitioner, "partitioner", arity=2, gets="key, number of subtasks"
        )
        selector = key_selector(key, (), self._origins)
        return self._partitioned(
            CustomPartitioner(partitioner, selector, caller_location())
        )

    def name(self, name: str) -> Self:
        """Return the stream with a name for the operator that made it.

        Streams do not change: the result takes the place of this stream, and a job that
        uses this one too is refused. So are the results of `uid`, `set_parallelism`,
        `set_max_parallelism`, `slot_sharing_group`, `disable_chaining` and
        `start_new_chain`. A sink's result may be dropped: ``sink_to(sink).name("out")``.
        """
        return self._changed(
            f".name({name!r})", name=check_name(name, "name"), id_name=""
        )

    def uid(self, uid: str) -> Self:
        """Return the stream with a stable name for the operator that made it.

        By it, the operator's state is found on restore. As for `name`, the result takes
        the place of this stream.
        """
        return self._changed(f".uid({uid!r})", uid=check_name(uid, "uid"))

    def set_parallelism(self, parallelism: int) -> Self:
        """Return the stream with so many subtasks of the operator that made it.

        Raises:
            InvalidArgumentError: If the operator has fewer in any case.
        """
        count, item = check_count(parallelism, "parallelism"), self._operator
        if item.parallelism_max is not None and count > item.parallelism_max:
            raise InvalidArgumentError(
                "parallelism",
                f"{item.name!r} has at most {item.parallelism_max}",
                "Leave it out here, and set it for the operators that follow.",
            )
        return self._changed(f".set_parallelism({parallelism!r})", parallelism=count)

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Return the stream with so many key groups of the operator that made it."""
        return self._changed(
            f".set_max_parallelism({max_parallelism!r})",
            max_parallelism=check_max_parallelism(max_parallelism),
        )

    def slot_sharing_group(self, name: str) -> Self:
        """Return the stream with a slot sharing group for the operator and what follows.

        Operators of different groups share no task. A deployment over several processes
        gives each group its own workers.

        Args:
            name: The group's name. An operator without one is in the group of its inputs,
                or in ``"default"`` if it has no inputs or they are in several groups.
        """
        return self._changed(
            f".slot_sharing_group({name!r})",
            slot_sharing_group=check_name(name, "name"),
        )

    def disable_chaining(self) -> Self:
        """Return the stream with a task of its own for the operator that made it."""
        return self._changed(".disable_chaining()", chaining=ChainingStrategy.NEVER)

    def start_new_chain(self) -> Self:
        """Return the stream with a new task that begins with the operator."""
        return self._changed(".start_new_chain()", chaining=ChainingStrategy.HEAD)

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

    def _changed(self, call: str, **settings: Any) -> Self:
        """Return the stream of a copy of its operator with other settings."""
        _ = self._operator
        [origin] = self._origins
        item = self._definition.change(origin.transformation, call, **settings)
        stream = copy(self)
        stream._origins = [replace(origin, transformation=item)]
        return stream
