"""Streams with whole partitions: their verbs compute once, when the input has ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiomailbox.api.build import described_key
from aiomailbox.api.definition import formed, key_selector, own_copy
from aiomailbox.api.grouped import Grouped
from aiomailbox.api.misnamed import OF_PARTITIONS, Unfinished
from aiomailbox.api.windowed import Items
from aiomailbox.graph.transformation import Origin
from aiomailbox.operators.core.user_code import (
    OnError,
    check_function,
    check_on_error,
    fail,
)
from aiomailbox.operators.keyed.sorting import MEMORY_BYTES, SortOperator
from aiomailbox.typevars import K, T, U
from aiomailbox.windowing.partition import partition_operator

if TYPE_CHECKING:
    # A stream leads to this class, and this class to a stream: only in their types.
    from aiomailbox.api.stream import DataStream


# What `explain` says.
_HOLDS_RECORDS: Final = "all records are held in memory until the input ends"
_HOLDS_VALUES: Final = "one value for each key is held until the input ends"
_IN_FILES: Final = (
    "the records that it sorts are in memory and in files, which are in no checkpoint"
)


class PartitionWindowedStream(Unfinished, Grouped[K, T]):
    """A stream in whole partitions; next is what to compute of each of them.

    A partition has all records of a key or, of a stream without keys, all of a subtask.
    Results come when the input has ended: this is for bounded streams, and needs neither
    event times nor watermarks. Made by `KeyedStream.full_window_partition` and
    `DataStream.full_window_partition`.

    Concept:
        Flink, ``PartitionWindowedStream``.
    """

    _called = "partitions"
    _left = (
        "aggregate(...), reduce(...), map_partition(...) or sort_partition(...), which "
        "give a stream"
    )
    _meant = OF_PARTITIONS

    def __init__(
        self,
        key: Callable[[T], K] | None,
        derive: Callable[..., DataStream[Any]],
        origins: list[Origin],
    ) -> None:
        self._key = key
        self._derive = derive
        self._origins = origins

    def __repr__(self) -> str:
        key = "" if self._key is None else f" by {described_key(self._key)}"
        return f"<PartitionWindowedStream{key}>"

    def map_partition(
        self, function: Callable[[list[T]], Items[U]], *, on_error: OnError = fail
    ) -> DataStream[U]:
        """Emit the items that a function returns for all records of a partition.

        All records are held in memory. A warning says when a million are.

        Args:
            function: ``function(records)`` → an iterable; it may be ``async def``, or a
                generator. ``records`` is a list of its own, in the order of arrival.
            on_error: How to handle a partition for which it raises.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection(["tea", "jam", "ale"])
            >>> last = words.full_window_partition().map_partition(
            ...     lambda records: sorted(records)[-1:]
            ... )
            >>> am.run(last.collect())
            ['tea']
        """
        check_function(function, "function", arity=1)
        factory = self._factory(function=function, on_error=on_error)
        return self._at_end(
            "map partition",
            factory,
            functions=(function,),
            unbounded=_HOLDS_RECORDS,
        )

    def sort_partition(
        self,
        by: str | Callable[[T], Any],
        *,
        descending: bool = False,
        memory_bytes: int = MEMORY_BYTES,
        on_error: OnError = fail,
    ) -> DataStream[T]:
        """Emit the records of each partition in the order of a field.

        Records with equal values keep their order. More records than fit into memory are
        sorted in files without a name, in the directory for temporary files (``TMPDIR``).
        The job takes no checkpoints.

        Args:
            by: A field's name, or a function of a record. NaN is the largest value.
            descending: Whether the largest is first.
            memory_bytes: How much memory the records of a subtask may take, estimated.
            on_error: How to handle a record whose value is None, or of a type that has
                no order with that of the first.

        Raises:
            InvalidArgumentError: If it is known that no record has the field, or
                ``memory_bytes`` is below 1.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> sales = env.from_collection([{"price": 5}, {"price": 3}])
            >>> in_order = sales.full_window_partition().sort_partition("price")
            >>> am.run(in_order.collect())
            [{'price': 3}, {'price': 5}]
        """
        factory = partial(
            SortOperator,
            self._key,
            key_selector(by, (), self._origins, "by"),
            descending=descending,
            memory_bytes=memory_bytes,
            on_error=check_on_error(on_error),
        )
        return self._at_end(
            "sort partition",
            factory,
            functions=() if isinstance(by, str) else (by,),
            bound=f"{memory_bytes} bytes, and files",
            no_checkpoints=_IN_FILES,
        )

    def _reduced(
        self, name: str, function: Callable[[Any, Any], Any], on_error: OnError
    ) -> DataStream[Any]:
        factory = self._factory(reduce=function, on_error=on_error)
        return self._at_end(f"partition {name}", factory, functions=(function,))

    def _aggregated(self, **work: Any) -> DataStream[Any]:
        factory = self._factory(**work)
        return self._at_end("partition aggregate", factory, has_columns=True)

    def _factory(self, **work: Any) -> partial[Any]:
        check_on_error(work["on_error"])
        return partial(own_copy, formed, partition_operator, self._key, **work)

    def _at_end(self, name: str, factory: Any, **facts: Any) -> DataStream[Any]:
        if self._key is not None:
            facts.setdefault("unbounded", _HOLDS_VALUES)
        facts["held"] = "the records of its partitions"
        return self._derive(name, factory, emits_at_end=True, **facts)
