"""Streams whose records have fields: chosen, computed, and handled as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal

from aiomailbox import connectors
from aiomailbox.api.build import RunIn, check_name, check_renames, field_names, selected
from aiomailbox.api.definition import expression_infos
from aiomailbox.graph.transformation import OperatorFactory
from aiomailbox.operators.core.user_code import OnError, check_on_error, fail
from aiomailbox.signatures import explained
from aiomailbox.typevars import T

if TYPE_CHECKING:
    # A stream leads to this class, and this class to a stream: only in their types.
    from aiomailbox.api.stream import DataStream
    from aiomailbox.operators.core.fields import Expression


class Fields(Generic[T]):
    """The verbs of a stream that know fields and columns; see `DataStream`."""

    if TYPE_CHECKING:

        def _derive(
            self, name: str, factory: OperatorFactory, **facts: Any
        ) -> DataStream[Any]: ...

    def select(
        self, *names: str, on_error: OnError = fail, **named: str | Expression
    ) -> DataStream[Any]:
        """Keep some fields of the records, and rename or compute others.

        Dicts stay dicts, all other records become NamedTuples. Columns stay columns.

        Args:
            names: The fields to keep, in this order.
            on_error: How to handle a record for which an expression fails.
            named: New names, each with the name of a field or an expression of
                `pyarrow.compute`. They follow the kept fields.

        Raises:
            InvalidArgumentError: If no field is named, two would have the same name, or
                the records cannot have a field of a new name.
            RecordTypeError: If the records are known to have no such field.
            WrongTypeError: If something is neither a name nor an expression.

        Example:
            >>> import aiomailbox as am
            >>> import pyarrow.compute as pc
            >>> env = am.StreamExecutionEnvironment()
            >>> orders = env.from_collection(
            ...     [{"item": "tea", "price": 2.5, "count": 2}]
            ... )
            >>> total = pc.field("price") * pc.field("count")
            >>> am.run(orders.select("item", each="price", total=total).collect())
            [{'item': 'tea', 'each': 2.5, 'total': 5.0}]
        """
        return self._projected(
            "Select", "select", **selected(names, named), on_error=on_error
        )

    def with_columns(
        self, *, on_error: OnError = fail, **computed: Expression
    ) -> DataStream[Any]:
        """Add computed fields and keep the others; a field of the same name is replaced.

        Dicts stay dicts, all other records become NamedTuples. Columns stay columns.

        Args:
            on_error: How to handle a record for which an expression fails.
            computed: Expressions of `pyarrow.compute` by the names of the fields. All
                of them read the fields as they were before.

        Raises:
            RecordTypeError: If the records are known to have no such field.
            InvalidArgumentError: If the records cannot have a field of a new name.
            WrongTypeError: If a computed field is not given as an expression.

        Example:
            >>> import aiomailbox as am
            >>> import pyarrow.compute as pc
            >>> env = am.StreamExecutionEnvironment()
            >>> orders = env.from_collection([{"price": 2.5, "count": 2}])
            >>> total = pc.field("price") * pc.field("count")
            >>> am.run(orders.with_columns(total=total).collect())
            [{'price': 2.5, 'count': 2, 'total': 5.0}]
        """
        field_names(tuple(computed))
        return self._projected(
            "WithColumns", "with_columns", expressions=computed, on_error=on_error
        )

    def map_batches(
        self,
        function: Callable[[Any], Any],
        *,
        form: Literal["arrow", "polars", "pandas", "numpy"] = "arrow",
        run_in: RunIn = "loop",
        timestamps: str | None = None,
    ) -> DataStream[Any]:
        """Replace each batch of records by what a function returns for it.

        Columns stay columns; rows are grouped into batches first. Batches have up to
        16,384 records, and their boundaries carry no meaning. Dicts stay dicts, all other
        records become NamedTuples. If the function raises, the job fails.

        Args:
            function: ``function(batch)`` → a batch, sync or ``async def``. Batches are
                processed one at a time, before the watermark or checkpoint that follows.
            form: The form that the function gets and returns: ``"arrow"`` is a pyarrow
                RecordBatch (it may return a Table), ``"polars"`` and ``"pandas"`` are
                DataFrames, ``"numpy"`` is a dict of arrays of shape ``(n,)`` that are
                read-only.
            run_in: ``"thread"`` for a sync function that blocks: the event loop stays
                responsive.
            timestamps: The column of the result that holds event times: a timestamp with
                a time zone, or integers in milliseconds. None keeps the records' event
                times: if they have any, the function returns as many records as it got.

        Raises:
            InvalidArgumentError: If ``form`` is unknown, or an ``async def`` function is
                to run in a thread.
            MissingExtraError: If the form's library, or pyarrow, is not installed.

        Example:
            >>> import aiomailbox as am
            >>> import pyarrow as pa
            >>> import pyarrow.compute as pc
            >>> def double(batch):
            ...     return pa.record_batch({"n": pc.multiply(batch["n"], 2)})
            >>> env = am.StreamExecutionEnvironment()
            >>> numbers = env.from_arrow(pa.table({"n": [1, 2]}))
            >>> am.run(numbers.map_batches(double).collect())
            [Record(n=2), Record(n=4)]
        """
        factory = partial(
            connectors.MapBatchesOperator,
            function,
            form=form,
            run_in=run_in,
            timestamps=timestamps,
        )
        return self._derive("map_batches", factory, functions=(function,), serial=False)

    def drop(self, *names: str) -> DataStream[Any]:
        """Remove fields of the records and keep all others.

        Dicts stay dicts, all other records become NamedTuples. Columns stay columns.

        Raises:
            RecordTypeError: If the records are known to have no such field.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> orders = env.from_collection([{"item": "tea", "price": 2.5}])
            >>> am.run(orders.drop("price").collect())
            [{'item': 'tea'}]
        """
        names = field_names(names)
        return self._projected("Drop", "drop", names=names, on_error=fail)

    @explained('Write rename({"old": "new"}).')
    def rename(self, names: Mapping[str, str]) -> DataStream[Any]:
        """Rename fields of the records.

        Dicts stay dicts, all other records become NamedTuples. Columns stay columns.

        Args:
            names: A mapping of the old names to the new ones.

        Raises:
            InvalidArgumentError: If two would be renamed to the same, or the records
                cannot have a field of a new name.
            RecordTypeError: If the records are known to have no such field.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> orders = env.from_collection([{"item": "tea", "price": 2.5}])
            >>> am.run(orders.rename({"price": "euros"}).collect())
            [{'item': 'tea', 'euros': 2.5}]
        """
        renames = check_renames(names)
        return self._projected("Rename", "rename", names=renames, on_error=fail)

    def _projected(
        self,
        kind: str,
        name: str,
        on_error: OnError = fail,
        expressions: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> DataStream[Any]:
        policy = check_on_error(on_error)
        computed = {
            check_name(name, "name"): connectors.check_expression(value, name)
            for name, value in (expressions or {}).items()
        }
        given = {name: value for name, value in given.items() if value}
        projection = getattr(connectors, kind)(expressions=computed, **given)
        factory = partial(connectors.ProjectionOperator, projection, on_error=policy)
        infos = expression_infos(*computed.values())
        return self._derive(name, factory, functions=infos)
