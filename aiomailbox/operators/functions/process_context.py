"""What a process function may ask while it processes a record."""

from __future__ import annotations

from typing import Any

from aiomailbox.errors import StateError, WrongTypeError
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.misnamed import Context
from aiomailbox.records.elements import MIN_TIMESTAMP, OutputTag
from aiomailbox.typevars import ValueT


class ProcessContext(Context):
    """The record's event time, side outputs, time, and the task's services.

    One object serves all calls of a function: it describes the record that is being
    processed now and is not to be kept.

    Args:
        context: The operator's context.
        collector: Where the function's results go.

    Attributes:
        timestamp: The record's event time in milliseconds, or None.
        current_watermark: The watermark so far, `MIN_TIMESTAMP` before the first.
        resource: What the context manager that ``open`` returned gave, or None.

    Concept:
        Flink, ``ProcessFunction.Context``.
    """

    __slots__ = ("_collector", "_context", "current_watermark", "resource", "timestamp")

    def __init__(self, context: RuntimeContext, collector: Collector) -> None:
        self._context = context
        self._collector = collector
        self.timestamp: int | None = None
        self.current_watermark: int = MIN_TIMESTAMP
        self.resource: Any = None

    def output(self, tag: OutputTag[ValueT], value: ValueT) -> None:
        """Emit to a side output, with the event time of the current record.

        Raises:
            WrongTypeError: If ``tag`` is not an `OutputTag`.
        """
        if not isinstance(tag, OutputTag):
            raise WrongTypeError(
                "tag", f"{tag!r} is not an OutputTag", "Write am.OutputTag('late')."
            )
        self._collector.collect_side(tag, value)

    @property
    def metrics(self) -> MetricGroup:
        """The operator's metrics."""
        return self._context.metrics

    @property
    def mailbox(self) -> MailboxExecutor:
        """The task's mailbox, at the operator's priority."""
        return self._context.mailbox

    @property
    def state(self) -> Any:
        """The state of the current key, which only records of keyed streams have.

        Raises:
            StateError: Where there is no current key.
        """
        raise StateError(
            f"operator {self._context.operator_name!r} has no keyed state here, for "
            "this record has no key. Write stream.key_by(...).process(...)."
        )

    def current_processing_time(self) -> int:
        """Return wall-clock time, integer milliseconds since the epoch."""
        return self._context.processing_time.current_processing_time()

    @property
    def timer_service(self) -> Any:
        """Timers, which only keyed streams have.

        Raises:
            StateError: On a stream without keys.
        """
        raise StateError(
            f"operator {self._context.operator_name!r} has no timers, for its stream "
            "has no keys. Write stream.key_by(...).process(...)."
        )
