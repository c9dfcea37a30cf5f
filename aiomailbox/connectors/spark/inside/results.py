"""The ways out of a pipeline inside Spark: results, side outputs, dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa

from aiomailbox.availability import Availability
from aiomailbox.clock import Clock
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.encode import BatchMaker
from aiomailbox.connectors.sinks import ImmediateSink, ImmediateWriter
from aiomailbox.graph.transformation import Origin, Transformation
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.core.user_code import DeadLetter, ErrorAction, OnError
from aiomailbox.operators.sinks.sink import SinkWriter
from aiomailbox.operators.stateless.operators import MapOperator
from aiomailbox.records.events import OutputTag
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun, Run

# Under this name a task's context gives where results go.
RESULTS: Final = "spark results"

# How long results that are few may wait for others.
_WAIT_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class ResultSink(ImmediateSink):
    """The end of one output.

    Attributes:
        output: The output's number.
        columns: Its schema.
    """

    output: int
    columns: pa.Schema
    takes_columns = True

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        """Create the writer of one task."""
        return _ResultWriter(self, context.handover(RESULTS), context.clock)


class _ResultWriter(ImmediateWriter):
    """Makes batches of results: of many results, unless Spark waits for few.

    Attributes:
        accepts: Available while there is room.
    """

    keeps_nothing = False

    def __init__(self, sink: ResultSink, results: Any, clock: Clock) -> None:
        self.accepts: Availability = results.room
        self._output = sink.output
        self._results = results
        self._clock = clock
        self._maker = BatchMaker(sink.columns, needs_columns=True)
        self._columns = sink.columns
        self._values: list[Any] = []
        self._flushed_s = clock.monotonic()

    def write_run(self, run: Run) -> Pending:
        """Write results; where they are few, later ones with them."""
        if isinstance(run, ArrowRun):
            self._flush()
            self._offer(run)
            return None
        self._values += run.values
        if len(self._values) >= RUN_LENGTH_MAX or self._is_awaited():
            self._flush()
        return None

    def flush(self, *, end_of_input: bool) -> Pending:
        """Write what waits."""
        self._flush()
        return None

    def _is_awaited(self) -> bool:
        return (
            self._results.is_starved
            and self._clock.monotonic() - self._flushed_s >= _WAIT_S
        )

    def _flush(self) -> None:
        if self._values:
            values, self._values = self._values, []
            self._offer(ListRun(values))

    def _offer(self, run: Run) -> None:
        for batch in self._maker.batches(run):
            # Spark takes times of day in its own unit only, which no value is in.
            fitted = batch.cast(self._columns)
            self._results.offer_result(self._output, fitted)
        self._flushed_s = self._clock.monotonic()


# Dead letters as rows of a DataFrame.


DEAD_LETTER_COLUMNS: Final = pa.schema(
    [
        ("record", pa.string()),
        ("timestamp_ms", pa.int64()),
        ("operator", pa.string()),
        ("uid", pa.string()),
        ("attempts", pa.int32()),
        ("error_type", pa.string()),
        ("error", pa.string()),
        ("traceback", pa.string()),
    ]
)


def dead_letter_origins(items: list[Transformation]) -> list[Origin]:
    """Return where the dead letters of operators come from."""
    return [Origin(item, None, tag) for item in items for tag in _tags(item)]


def dead_letter_rows(letters: list[Origin]) -> list[Origin]:
    """Return dead letters as rows of `DEAD_LETTER_COLUMNS`."""
    return [
        Origin(
            Transformation(
                "dead letters as rows",
                partial(MapOperator, _plain),
                [letters],
                follows_input=True,
            )
        )
    ]


def _plain(letter: DeadLetter) -> dict[str, Any]:
    return {
        "record": _as_text(letter.record),
        "timestamp_ms": letter.timestamp,
        "operator": letter.operator,
        "uid": letter.uid,
        "attempts": letter.attempts,
        "error_type": letter.error_type,
        "error": letter.error,
        "traceback": letter.traceback,
    }


def _as_text(record: Any) -> str:
    """Return a record as JSON, where it has such a form, else as Python shows it."""
    if hasattr(record, "_asdict"):
        record = record._asdict()
    try:
        return msgspec.json.encode(record).decode()
    except (TypeError, ValueError):
        return repr(record)


def _tags(item: Transformation) -> list[OutputTag]:
    """Return where an operator's dead letters go."""
    arguments = getattr(item.factory, "args", ())
    named = getattr(item.factory, "keywords", {}).values()
    return [
        argument.tag
        for argument in (*arguments, *named)
        if isinstance(argument, OnError)
        and argument.action is ErrorAction.DEAD_LETTER
        and argument.tag is not None
    ]
