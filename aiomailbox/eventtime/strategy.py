"""How a user says where event time comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from aiomailbox.durations import duration_ms
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.eventtime.assigner import AssignerSpec, TimestampAssigner
from aiomailbox.eventtime.generators import (
    BoundedOutOfOrderness,
    NoWatermarks,
    WatermarkGenerator,
)
from aiomailbox.eventtime.idleness import RelativeClock, WithIdleness

__all__ = ["AlignmentConfig", "WatermarkStrategy"]


@dataclass(frozen=True, slots=True)
class AlignmentConfig:
    """How far ahead of the slowest reader of a group a reader may run.

    Attributes:
        group: Readers of the same group wait for each other, also of other sources.
        max_drift_ms: How far ahead, in event time.
        update_interval_ms: How often the group's slowest is looked for.
    """

    group: str
    max_drift_ms: int
    update_interval_ms: int


@dataclass(frozen=True)
class WatermarkStrategy:
    """Where event times come from, and how late records may be.

    Holds no progress: each task, and each split of a source, makes a generator of its
    own. Every method returns a new strategy.

    Attributes:
        generator_factory: Makes the generator of a stream or split.
        assigner: What `with_timestamp_assigner` was given, or None: event times are
            those that the records have already.
        idleness_ms: After how many quiet milliseconds a stream is idle, or None.
        alignment: Which other sources to wait for, or None.
        moves_on_bounded_input: Whether event time moves while a DataFrame is read inside
            Spark, too, or waits for the end of each partition.

    Concept:
        Flink, ``WatermarkStrategy``.

    Example:
        >>> from aiomailbox.durations import minutes, seconds
        >>> strategy = (
        ...     WatermarkStrategy.for_bounded_out_of_orderness(seconds(2))
        ...     .with_timestamp_assigner("created_at")
        ...     .with_idleness(minutes(1))
        ... )
        >>> strategy.idleness_ms
        60000
    """

    generator_factory: Callable[[], WatermarkGenerator]
    assigner: AssignerSpec | None = None
    idleness_ms: int | None = None
    alignment: AlignmentConfig | None = None
    moves_on_bounded_input: bool = False

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        """Return a strategy for records that come in the order of their event times."""
        return cls(partial(BoundedOutOfOrderness, 0))

    @classmethod
    def for_bounded_out_of_orderness(
        cls, max_out_of_orderness: timedelta | float
    ) -> WatermarkStrategy:
        """Return a strategy for records that come at most so much too late.

        Args:
            max_out_of_orderness: A timedelta or a number of seconds.

        Raises:
            InvalidArgumentError: If it is negative, or looks like milliseconds.
        """
        bound_ms = duration_ms(max_out_of_orderness, "max_out_of_orderness")
        return cls(partial(BoundedOutOfOrderness, bound_ms))

    @classmethod
    def no_watermarks(cls) -> WatermarkStrategy:
        """Return a strategy without event time: it moves only when the stream ends."""
        return cls(NoWatermarks)

    @classmethod
    def for_generator(
        cls, factory: Callable[[], WatermarkGenerator]
    ) -> WatermarkStrategy:
        """Return a strategy with the user's own generator, one per call."""
        return cls(factory)

    def with_timestamp_assigner(self, assigner: AssignerSpec) -> WatermarkStrategy:
        """Take event times from a field, or from a function.

        Args:
            assigner: A field's name, ``fn(value)`` or ``fn(value, previous)``, giving
                int milliseconds or an aware datetime. ``previous`` is the event time
                so far, or None.

        Raises:
            WrongTypeError: If it is neither, or is an ``async def`` function.
        """
        TimestampAssigner(assigner)  # fails here, where it is written
        return replace(self, assigner=assigner)

    def with_idleness(self, timeout: timedelta | float) -> WatermarkStrategy:
        """Let a stream without records not hold event time back.

        Args:
            timeout: A timedelta or a number of seconds, more than zero.

        Raises:
            InvalidArgumentError: If it is zero or negative.
        """
        idleness_ms = duration_ms(timeout, "timeout")
        if idleness_ms == 0:
            raise InvalidArgumentError(
                "timeout",
                "it is 0, so that every input would be idle at once",
                "Use more than zero.",
            )
        return replace(self, idleness_ms=idleness_ms)

    def with_watermark_alignment(
        self,
        group: str,
        max_drift: timedelta | float,
        update_interval: timedelta | float = 1.0,
    ) -> WatermarkStrategy:
        """Hold sources back that run ahead of the slowest of their group.

        Args:
            group: Sources that name the same group wait for each other.
            max_drift: How far ahead a source may be in event time.
            update_interval: How often the slowest is looked for.

        Raises:
            InvalidArgumentError: If a duration is negative, or the interval zero.
        """
        interval_ms = duration_ms(update_interval, "update_interval")
        if interval_ms == 0:
            raise InvalidArgumentError("update_interval", "it is 0", "Use e.g. 1.0.")
        drift_ms = duration_ms(max_drift, "max_drift")
        return replace(self, alignment=AlignmentConfig(group, drift_ms, interval_ms))

    def with_watermarks_on_bounded_input(self) -> WatermarkStrategy:
        """Let event time move while a DataFrame is read inside Spark, too.

        There (``apply_to``, ``run_on``) the rows of a partition may have any order, so
        that watermarks are held to its end, and no row is late, unless ``order_by=`` sorts
        them. This strategy holds for them as it does elsewhere: what comes later than it
        allows is late.
        """
        return replace(self, moves_on_bounded_input=True)

    def create_assigner(self) -> TimestampAssigner | None:
        """Return the assigner, or None when the records' own event times count."""
        return None if self.assigner is None else TimestampAssigner(self.assigner)

    def create_generator(self, clock: RelativeClock) -> WatermarkGenerator:
        """Return a new generator, for one stream or one split.

        Args:
            clock: Measures quiet time; paused while the stream may not flow.
        """
        generator = self.generator_factory()
        if self.idleness_ms is None:
            return generator
        return WithIdleness(generator, self.idleness_ms / 1000, clock)
