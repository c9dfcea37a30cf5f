"""Makes the operator for what the user said about windows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from aiomailbox.durations import pipeline_ms
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.operators.aggregates.functions import (
    can_merge,
    check_aggregate,
    is_async_aggregate,
)
from aiomailbox.operators.core.user_code import (
    OnError,
    check_function,
    fail,
    is_async_callable,
    refuse_generator,
)
from aiomailbox.operators.keyed.operators import KeySelector, StatefulOperator
from aiomailbox.records.events import OutputTag
from aiomailbox.windowing.aggregate import (
    SlidingAggregateOperator,
    TumblingAggregateOperator,
)
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    WindowAssigner,
)
from aiomailbox.windowing.contents import (
    AccumulatedContents,
    ListedContents,
    WindowContents,
)
from aiomailbox.windowing.evictors import Evictor
from aiomailbox.windowing.functions import check_window_function
from aiomailbox.windowing.incremental import AsyncReduce, ReduceAggregate
from aiomailbox.windowing.operator import WindowEmitter, WindowOperator
from aiomailbox.windowing.panes import PanedAggregateOperator, may_share_panes
from aiomailbox.windowing.session_aggregate import SessionAggregateOperator
from aiomailbox.windowing.spec import WindowSpec
from aiomailbox.windowing.triggers import Trigger


def window_operator(
    key: KeySelector | None,
    assigner: WindowAssigner,
    *,
    reduce: Callable[[Any, Any], Any] | None = None,
    aggregate: Any = None,
    window_function: Any = None,
    include_key: bool = False,
    trigger: Trigger | None = None,
    evictor: Evictor | None = None,
    allowed_lateness: timedelta = timedelta(),
    late_tag: OutputTag | None = None,
    on_error: OnError = fail,
) -> StatefulOperator:
    """Return the operator that groups records by key and window.

    Args:
        key: A field's name or a function of a record; None for one key for all.
        assigner: Which windows a record belongs to.
        reduce: ``(reduced, record) -> reduced``.
        aggregate: An `AggregateFunction`; several named ones give records that also
            have ``key``, ``window_start`` and ``window_end``.
        window_function: A `ProcessWindowFunction`, or a function
            ``(key, window, elements)`` that returns an iterable of results. Together
            with ``reduce`` or ``aggregate`` its only element is their result.
        include_key: Whether the result of ``reduce`` or of a single aggregate is
            ``(key, result)``.
        trigger: When windows fire; None for the assigner's default.
        evictor: Which records are left out.
        allowed_lateness: How long after its end a window takes late records: a
            timedelta.
        late_tag: The side output of records that come too late.
        on_error: How to handle a record for which a function raises.

    Raises:
        InvalidArgumentError: If there is nothing to do with a window, or two things; if
            the lateness is negative; if the trigger cannot merge and the windows do.
        WrongTypeError: If an argument is of a wrong type, or an aggregate cannot merge
            and the windows do.

    Concept:
        Flink, ``WindowOperatorBuilder``.

    Example:
        >>> from aiomailbox.operators.aggregates.functions import sum_
        >>> from aiomailbox.testing import OneInputHarness
        >>> from aiomailbox.windowing.assigners import TumblingEventTimeWindows
        >>> operator = window_operator(
        ...     len,
        ...     TumblingEventTimeWindows.of(timedelta(seconds=5)),
        ...     aggregate=sum_(int),
        ... )
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.process_run(["1", "2"], [1000, 2000])
        ...     harness.process_watermark(4999)
        ...     harness.output
        [StreamRecord(value=3, timestamp=4999), Watermark(timestamp_ms=4999)]
    """
    spec = WindowSpec(
        key=key,
        assigner=assigner,
        trigger=trigger,
        evictor=evictor,
        allowed_lateness_ms=pipeline_ms(allowed_lateness, "allowed_lateness"),
        late_tag=late_tag,
        on_error=on_error,
        include_key=include_key,
    )
    folding = folding_of(reduce, aggregate, merging=spec.assigner.is_merging)
    function = (
        None if window_function is None else check_window_function(window_function)
    )
    if folding is None and function is None:
        raise InvalidArgumentError(
            "window_function",
            "no function is given",
            "Pass reduce, aggregate or window_function.",
        )
    if include_key and function is not None:
        raise InvalidArgumentError(
            "include_key",
            "window_function is given as well, which gets the key",
            "Let the function return the key with its result.",
        )
    is_async = folding is not None and is_async_aggregate(folding)
    # The fast ways give the same results in the same order; whatever they do not know
    # goes the general way.
    if spec.is_plain and folding is not None and not is_async and not function:
        if isinstance(assigner, SlidingEventTimeWindows):
            if may_share_panes(assigner, folding):
                return PanedAggregateOperator(spec, folding)
            return SlidingAggregateOperator(spec, folding)
        if isinstance(assigner, EventTimeSessionWindows):
            return SessionAggregateOperator(spec, folding)
        return TumblingAggregateOperator(spec, folding)
    contents: WindowContents
    # An evictor looks at records, so they are kept even where they are aggregated.
    if folding is None or evictor is not None:
        contents = ListedContents(with_timestamps=evictor is not None)
    else:
        contents = AccumulatedContents(folding)
    emitter = WindowEmitter(
        folding,
        function,
        folds=evictor is not None,
        keyed=key is not None,
        include_key=include_key,
    )
    return WindowOperator(spec, contents, emitter, function)


def folding_of(reduce: Any, aggregate: Any, *, merging: bool) -> Any:
    """Return the aggregate function, made from the reduce function if that is given.

    Args:
        reduce: A function of two records, or None.
        aggregate: An aggregate function, or None.
        merging: Whether windows merge.

    Raises:
        InvalidArgumentError: If both are given.
        WrongTypeError: If one is of a wrong type, or cannot merge and has to.
    """
    if reduce is not None and aggregate is not None:
        raise InvalidArgumentError(
            "aggregate", "reduce is given as well", "Use one of them."
        )
    if reduce is not None:
        checked = check_function(reduce, "reduce", arity=2, gets="reduced, record")
        refuse_generator(reduce, "reduce", "Return the reduced record.")
        return (
            AsyncReduce(checked)
            if is_async_callable(checked)
            else ReduceAggregate(checked)
        )
    if aggregate is None:
        return None
    if merging and not can_merge(aggregate):
        raise WrongTypeError(
            "aggregate",
            f"{aggregate!r} has no method merge, or a part of it has none, and session "
            "windows need it",
            "Define merge(first, second).",
        )
    return check_aggregate(aggregate)
