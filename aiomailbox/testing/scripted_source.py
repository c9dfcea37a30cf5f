"""A source that follows a script: records, pauses, crashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from aiomailbox.availability import Availability
from aiomailbox.errors import WorldError
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.sources.source import (
    Boundedness,
    EnumeratorContext,
    InputStatus,
    ReaderContext,
    ReaderOutput,
    StaticEnumerator,
)
from aiomailbox.records.events import MIN_TIMESTAMP, StreamRecord
from aiomailbox.records.run import ListRun
from aiomailbox.state.serializers import kept_in_state


class Script(Enum):
    """The values that a script may contain besides records."""

    CRASH = "crash"
    PAUSE = "pause"
    END = "end"


CRASH = Script.CRASH
PAUSE = Script.PAUSE
END = Script.END


class InjectedFailureError(WorldError):
    """The failure that a script requested."""


@kept_in_state("ScriptSplit")
@dataclass(frozen=True, slots=True)
class ScriptSplit:
    """One script, and the position of its reader.

    Attributes:
        split_id: The script's name.
        position: The index of the next item.
    """

    split_id: str
    position: int = 0


class ScriptedSource:
    """A source whose splits are lists of records, `CRASH`, `PAUSE` and `END`.

    A `StreamRecord` is a record with an event time, everything else a record without
    (unless ``timed``). ``CRASH`` raises once, however often the source is read again.
    ``PAUSE`` makes the reader unavailable until `resume`. A script ends at its end or
    at ``END``.

    Args:
        scripts: One script, or several by name: each is a split.
        timed: All records are pairs ``(value, timestamp)``.
        run_length: The maximum number of records per run; a run never crosses a marker.
        ends: Whether the end of a script is the end of its split; if not, the source
            is unbounded and waits there forever.

    Example:
        >>> source = ScriptedSource(["a", CRASH, "b"])
        >>> source.boundedness
        <Boundedness.BOUNDED: 'bounded'>
    """

    def __init__(
        self,
        scripts: Sequence[Any] | Mapping[str, Sequence[Any]],
        *,
        timed: bool = False,
        run_length: int = 1,
        ends: bool = True,
    ) -> None:
        named = scripts if isinstance(scripts, Mapping) else {"script": scripts}
        self.scripts: dict[str, list[Any]] = {
            name: list(script) for name, script in named.items()
        }
        self.timed = timed
        self.run_length = run_length
        self.ends = ends
        self._crashed: set[ScriptSplit] = set()
        self._readers: list[ScriptedReader] = []

    @property
    def boundedness(self) -> Boundedness:
        """Bounded if scripts end."""
        return Boundedness.BOUNDED if self.ends else Boundedness.UNBOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[ScriptSplit], state: Any = None
    ) -> StaticEnumerator[ScriptSplit]:
        """Create an enumerator that deals the scripts out to the readers."""
        splits = [ScriptSplit(name) for name in self.scripts]
        return StaticEnumerator(context, splits if state is None else list(state))

    def create_reader(self, context: ReaderContext) -> ScriptedReader:
        """Create a reader; `resume` reaches all of them."""
        reader = ScriptedReader(self)
        self._readers.append(reader)
        return reader

    def resume(self) -> None:
        """Resume the readers that have stopped at a ``PAUSE``."""
        for reader in self._readers:
            reader.resume()

    def crash(self, split: ScriptSplit) -> None:
        """Raise for a ``CRASH`` at this position, the first time.

        Raises:
            InjectedFailureError: The first time.
        """
        if split not in self._crashed:
            self._crashed.add(split)
            raise InjectedFailureError(
                f"script {split.split_id!r} says CRASH at {split.position}"
            )


class ScriptedReader:
    """Reads scripts in turn, a run from each.

    Attributes:
        availability: False while every script that is left stands at a ``PAUSE``.
        closed: Whether `close` was called.
    """

    def __init__(self, source: ScriptedSource) -> None:
        self.availability: Availability = Availability()
        self.closed: bool = False
        self._source = source
        self._positions: dict[str, int] = {}
        self._paused: set[str] = set()
        self._no_more = False

    def start(self) -> None:
        """Nothing to begin: scripts are dealt out."""

    def add_splits(self, splits: list[ScriptSplit]) -> None:
        """Take over scripts at their positions."""
        for split in splits:
            self._positions[split.split_id] = split.position
        self.availability.set_available()

    def notify_no_more_splits(self) -> None:
        """Be notified that no further script comes."""
        self._no_more = True
        self.availability.set_available()

    def snapshot(self) -> list[ScriptSplit]:
        """Return the scripts that have not ended."""
        return [
            ScriptSplit(name, position) for name, position in self._positions.items()
        ]

    def resume(self) -> None:
        """Continue after each ``PAUSE``."""
        for name in self._paused:
            self._positions[name] += 1
        self._paused.clear()
        self.availability.set_available()

    def close(self) -> Pending:
        """Stop reading."""
        self.closed = True
        return None

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit the next run of the script whose turn it is."""
        for name in list(self._positions):
            if name in self._paused or self._stops(name, output):
                continue
            self._emit(name, output)
            # The others have their turn first.
            self._positions[name] = self._positions.pop(name)
            return InputStatus.MORE_AVAILABLE
        if self._no_more and not self._positions:
            return InputStatus.END_OF_INPUT
        self.availability.reset()
        return InputStatus.NOTHING_AVAILABLE

    def _stops(self, name: str, output: ReaderOutput) -> bool:
        script, position = self._source.scripts[name], self._positions[name]
        while position < len(script) and script[position] is CRASH:
            self._source.crash(ScriptSplit(name, position))
            position = self._positions[name] = position + 1
        at_end = position == len(script)
        if at_end and not self._source.ends:
            return True
        if at_end or script[position] is END:
            del self._positions[name]
            output.release_split(name)
            return True
        if script[position] is PAUSE:
            self._paused.add(name)
            return True
        return False

    def _emit(self, name: str, output: ReaderOutput) -> None:
        script, start = self._source.scripts[name], self._positions[name]
        stop = start
        limit = min(start + self._source.run_length, start + output.records_max)
        while stop < min(limit, len(script)) and not isinstance(script[stop], Script):
            stop += 1
        self._positions[name] = stop
        output.for_split(name).emit_run(self._run(script[start:stop]))

    def _run(self, items: list[Any]) -> ListRun:
        values: list[Any] = []
        timestamps: list[int] = []
        for item in items:
            value, timestamp = item, None
            if self._source.timed or isinstance(item, StreamRecord):
                value, timestamp = item
            values.append(value)
            timestamps.append(MIN_TIMESTAMP if timestamp is None else timestamp)
        has_time = any(timestamp != MIN_TIMESTAMP for timestamp in timestamps)
        return ListRun(values, timestamps if has_time else None)
