"""A job in the making: settings, the sinks so far, and the way to run them."""

from __future__ import annotations

import atexit
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, MutableSequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import product
from typing import Any, Final

import msgspec

from aiomailbox.checkpoint.settings import CheckpointingMode
from aiomailbox.clock import Clock
from aiomailbox.connectors.inbox import Inbox
from aiomailbox.errors import (
    InvalidArgumentError,
    MissingExtraError,
    UsageError,
)
from aiomailbox.graph.describe import (
    describe_mermaid,
    describe_plan,
    describe_svg,
    describe_text,
    unreplayable_sources,
)
from aiomailbox.graph.job_graph import JobGraph, build_job_graph
from aiomailbox.graph.regions import (
    check_blocking,
    endless_source,
    source_without_watermarks,
)
from aiomailbox.graph.transformation import Origin, Transformation, reachable
from aiomailbox.logs import library_log
from aiomailbox.operators.core.user_code import caller_location, is_called_by_import
from aiomailbox.operators.sources.source import Boundedness
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.deployment import Deployment, Embedded
from aiomailbox.runtime.master import JobMaster
from aiomailbox.runtime.services import PullHandover
from aiomailbox.signatures import check_choice

# Of operators that nothing reads: enough to name a mistake.
_DECLARED_MAX: Final = 1000

# The first sink that no job has run, and its line, of each definition that has one. A
# definition may be gone at the end of the program: it has a token here.
_UNRUN: Final[dict[object, tuple[str, str]]] = {}
_UNRUN_MAX: Final = 1000
# Nobody runs in a copy of the process what was written in the original.
os.register_at_fork(after_in_child=_UNRUN.clear)


@dataclass(slots=True, eq=False)
class JobDefinition:
    """The description of jobs that an environment and its streams share.

    Attributes:
        parallelism: Subtasks of operators that do not say how many.
        max_parallelism: Key groups, None for Flink's default.
        clock: The job's clock, None for the event loop's own or the machine's.
        config: The settings of jobs.
        sinks: What `execute` runs: transformations whose effects are wanted.
        executed: What it has run last, to be explained.
        taken_by: The job that has taken what ended in sinks before; "" if there was none.
        refused: Whether the last ones that ended in sinks are given up: no job can run them.
        declared: The newest operators that no job has run.
        token: Stands for it among those with sinks that no job has run.
    """

    parallelism: int = 1
    max_parallelism: int | None = None
    clock: Clock | None = None
    config: JobConfig = field(default_factory=JobConfig)
    sinks: list[Transformation] = field(default_factory=list)
    executed: list[Transformation] = field(default_factory=list)
    taken_by: str = ""
    refused: bool = False
    declared: deque[Transformation] = field(
        default_factory=partial(deque, maxlen=_DECLARED_MAX)
    )
    token: object = field(default_factory=object)

    def end_in(self, sink: Transformation) -> None:
        """Keep a sink for `execute`."""
        self.sinks.append(sink)
        # A module that others import may offer what they do not run.
        if len(_UNRUN) < _UNRUN_MAX and not is_called_by_import():
            _UNRUN.setdefault(self.token, (sink.name, sink.line))

    def warn_of_late_sink(self, job: str) -> None:
        """Warn of a sink that came after a job had taken the others; once for each job."""
        sink, line = _UNRUN.pop(self.token, ("", ""))
        if sink:
            library_log(job=job).warning(
                "the job does not run a sink: it was added after the start",
                sink=sink,
                line=line,
                remedy="add all sinks before the job starts, or run this one as a "
                "job of its own with `await env.execute()`",
            )

    def warn_of_late_settings(self, job: str, before: JobConfig) -> JobConfig:
        """Warn of settings that came after the only job of this definition had started.

        Args:
            job: The job.
            before: The settings when it started.

        Returns:
            Those that were told of, to be told of the next ones only.
        """
        changed = [
            one.name
            for one in fields(before)
            if getattr(before, one.name) != getattr(self.config, one.name)
        ]
        # They may be for a job that is still to start.
        if changed and self.taken_by == job and not self.sinks:
            library_log(job=job).warning(
                "settings were changed after the job had started: it runs without them",
                settings=changed,
                remedy="call env.configure(...) and env.enable_checkpointing(...) before "
                "the job starts",
            )
        return self.config

    def declare(self, item: Transformation) -> list[Origin]:
        """Keep an operator that the user has written, and return its results' origins."""
        for origins in item.inputs:
            refuse_ended(origins)
        item.line = caller_location()
        self.declared.append(item)
        return [Origin(item)]

    def change(
        self, item: Transformation, call: str, **settings: Any
    ) -> Transformation:
        """Return a copy of an operator with other settings, which takes its place.

        Raises:
            UsageError: If it is a sink of a job that has started.
        """
        if item.is_part_of_input:
            [[origin]] = item.inputs
            changed = self.change(origin.transformation, call, **settings)
            settings = {"inputs": [[replace(origin, transformation=changed)]]}
        copy = replace(item, changed_by="", **settings)
        if item.sink is not None and not _put(self.sinks, item, copy):
            raise UsageError(
                f"{call} comes too late for sink {item.name!r}: its job has started"
            )
        _put(self.declared, item, copy)
        item.changed_by = f"{call} at {caller_location()}"
        return copy

    def forget_unread(self) -> list[Transformation]:
        """Return the last operators of branches that no job has run, and not again."""
        declared = list(self.declared)
        self.declared.clear()
        inputs = {
            id(origin.transformation)
            for item in declared
            for united in item.inputs
            for origin in united
        }
        return [item for item in declared if id(item) not in inputs]

    def job_graph(
        self,
        name: str,
        sinks: list[Transformation],
        config: JobConfig | None = None,
    ) -> JobGraph:
        """Return the job graph of what the sinks need.

        Raises:
            UsageError: If there is no sink.
            InvalidArgumentError: If the graph cannot be deployed as described.
        """
        if not sinks:
            reason = "no stream ends in a sink"
            if self.refused:
                reason = (
                    "the streams that end in a sink were refused when they were to run, "
                    "and are given up, because streams do not change"
                )
            elif self.taken_by:
                reason = (
                    f"job {self.taken_by!r} took all streams that end in a sink when it "
                    "was started"
                )
            message = (
                f"there is nothing to run: {reason}. End a stream with sink_to(...), "
                "again if it should run again, or use await stream.collect() or "
                "async for record in stream"
            )
            raise UsageError(message)
        if sinks[-1] in self.sinks:
            # What is run, or explained, is not forgotten.
            _UNRUN.pop(self.token, None)
        _check_unchanged(sinks)
        config = config or self.config
        return build_job_graph(
            name,
            sinks,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            chaining=config.operator_chaining,
            parent_apart=_place(config).parent_apart,
        )

    def _forget(self, sinks: list[Transformation]) -> None:
        """Run no sinks that no job can have, as nothing can mend them."""
        kept = [item for item in self.sinks if item not in sinks]
        self.refused = len(kept) < len(self.sinks)
        self.sinks[:] = kept

    def explain(self, name: str, sinks: list[Transformation], form: str) -> str:
        """Return the graph of what ends in the sinks.

        Raises:
            InvalidArgumentError: If the form is not known.
            UsageError: If there is no sink.
        """
        check_choice(form, "format", "text", *_FORMS)
        graph, config = self.job_graph(name, sinks), self.config
        if form != "text":
            return _FORMS[form](graph)
        checkpoints = config.checkpoints
        return describe_text(
            graph,
            buffers_per_channel=config.buffers_per_channel,
            floating_buffers=config.floating_buffers,
            stays_here=isinstance(_place(config), Embedded),
            buffer_size_bytes=config.buffer_size_bytes,
            unaligned=checkpoints is not None and checkpoints.unaligned,
            counts=(
                None
                if checkpoints is None
                else checkpoints.mode.value.replace("_", " ")
            ),
            checkpoints="" if checkpoints is None else str(checkpoints),
        )

    def deploy(
        self,
        name: str,
        sinks: list[Transformation],
        *,
        handovers: dict[str, PullHandover] | None = None,
        config: JobConfig | None = None,
    ) -> JobMaster:
        """Start a job for the sinks on the running loop and return it.

        Raises:
            UsageError: If there is nothing to run.
        """
        config = config or self.config
        place = _place(config)
        try:
            graph = self.job_graph(name, sinks, config)
        except UsageError:
            self._forget(sinks)
            raise
        # Workers get the settings, and start no others.
        config = replace(traced(config), deployment=None)
        _check_inboxes(graph)
        _check_files(graph)
        _check_replayable(graph, config)
        _check_blocking(graph, config)
        _check_ends(graph, config)
        _check_finished(config)
        job = place.deploy(graph, config, clock=self.clock, handovers=handovers or {})
        run = {id(item) for item in reachable(sinks)}
        left = [item for item in self.declared if id(item) not in run]
        self.declared.clear()
        self.declared.extend(left)
        return job


def refuse_ended(origins: Iterable[Origin]) -> None:
    """Refuse to go on from a sink, which emits nothing but dead letters.

    Raises:
        UsageError: If a stream is the end of one.
    """
    for origin in origins:
        item = origin.transformation
        if item.sink is not None and origin.tag is None:
            message = (
                f"a stream ends in sink_to(...): no records come out of {item.name!r} "
                f"({item.line}). Go on from the stream before it, which may have several "
                "ends"
            )
            raise UsageError(message)


def warn_of_unrun() -> None:
    """Warn, at the end of the program, of environments that were never executed.

    Not at a prompt and in a notebook, where somebody was about to, nor if the program
    ends with an error.
    """
    unrun = list(_UNRUN.values())
    if not unrun or hasattr(sys, "ps1") or getattr(sys, "last_value", None) is not None:
        return
    sink, line = unrun[0]
    library_log().warning(
        "the program ends, and an environment with sinks was never executed",
        sink=sink,
        line=line,
        environments=len(unrun),
        remedy="write `await env.execute()`, or `am.run(env.execute())` outside of "
        "async functions",
    )


# A test may build what it does not run.
if "pytest" not in sys.modules:
    atexit.register(warn_of_unrun)


def _put(
    items: MutableSequence[Transformation], item: Transformation, copy: Transformation
) -> bool:
    """Put a copy in the place of an operator, if it is there; say whether it was."""
    # The newest are asked for.
    for place in range(len(items) - 1, -1, -1):
        if items[place] is item:
            items[place] = copy
            return True
    return False


def _check_unchanged(sinks: list[Transformation]) -> None:
    """Refuse an operator of which a changed copy was made.

    Raises:
        UsageError: If there is one; names the call that made the copy.
    """
    for item in reachable(sinks):
        if item.changed_by:
            call, _, line = item.changed_by.partition(" at ")
            raise UsageError(
                f"the job uses operator {item.name!r} as it was before {call} "
                f"({line}). A stream does not change: {call} returns another one, so "
                f"write `stream = stream{call}`, and use that one only"
            )


def _place(config: JobConfig) -> Deployment:
    return config.deployment or Embedded()


def _as_json(graph: JobGraph) -> str:
    return msgspec.json.encode(describe_plan(graph)).decode()


_FORMS: Final[dict[str, Callable[[JobGraph], str]]] = {
    "json": _as_json,
    "mermaid": describe_mermaid,
    "svg": describe_svg,
}


def traced(config: JobConfig) -> JobConfig:
    """Return the settings with the trace of the code that runs now, if calls have spans.

    Raises:
        MissingExtraError: If they are to have spans, and there is no OpenTelemetry.
    """
    if not config.trace_calls:
        return config
    try:
        from opentelemetry import propagate
    except ImportError as error:
        raise MissingExtraError("trace_calls", "otel") from error
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return replace(config, trace_carrier=carrier)


def _check_inboxes(graph: JobGraph) -> None:
    """Refuse an inbox of which two sources of a job would each get some records.

    Raises:
        UsageError: If there is one; names both lines.
    """
    readers: dict[int, Transformation] = {}
    for item in (node.transformation for each in graph.vertices for node in each.nodes):
        if not isinstance(item.source, Inbox):
            continue
        other = readers.setdefault(id(item.source), item)
        if other is not item:
            raise UsageError(
                f"one inbox is the source of two streams of the job ({other.line} and "
                f"{item.line}): each record would go to one of them only. Write `stream = "
                "env.from_source(inbox)` once, and begin both with `stream`; or give "
                "each its own inbox"
            )


def _check_files(graph: JobGraph) -> None:
    """Look at sinks that write files where a source of the job reads.

    Raises:
        UsageError: If the source looks for new files: it would read those for ever.
    """
    items = [node.transformation for node in graph.nodes]
    for source, sink in product(items, items):
        files: Any = source.source
        may_read = getattr(files, "may_read", None)
        if may_read is None:
            continue
        # Spark has to be asked for that of a table.
        file_like = getattr(sink.sink, "file_like", None)
        if file_like is None or not may_read(file_like):
            continue
        if files.boundedness is Boundedness.UNBOUNDED:
            raise UsageError(
                f"{sink.sink!r} ({sink.line}) writes where {files!r} "
                f"({source.line}) looks for new files: the job would read its own "
                "results, again and again. Let the sink write to a directory that the "
                "source does not read"
            )
        library_log().warning(
            "a sink writes files where a source of its job reads: the next job reads "
            "the results of this one",
            sink=repr(sink.sink),
            sink_line=sink.line,
            source=repr(files),
            source_line=source.line,
            remedy="let the sink write to a directory that the source does not read",
        )


def _check_blocking(graph: JobGraph, config: JobConfig) -> None:
    """Refuse exchanges that would wait for ever, and checkpoints of what waits.

    Raises:
        InvalidArgumentError: If there is such an exchange, or one that blocks in a job
            that takes checkpoints.
    """
    blocking = [
        edge
        for vertex in graph.vertices
        for edge in vertex.out_edges
        if edge.is_blocking
    ]
    if not blocking:
        return
    check_blocking(graph)
    if config.checkpoints is not None or config.restore_from is not None:
        raise InvalidArgumentError(
            "blocking",
            f"the operators after {blocking[0].source.name!r} read their records from "
            "files when it has finished, and a checkpoint needs all tasks to run at the "
            "same time",
            "Leave env.enable_checkpointing(...) and restore_from= out: with a "
            "restart strategy, a task that fails after a blocking exchange reads "
            "its files again. Or leave blocking() out.",
        )


def _check_ends(graph: JobGraph, config: JobConfig) -> None:
    """Look at operators that wait for the end of their input.

    Raises:
        InvalidArgumentError: If one keeps what no checkpoint has, in a job that takes
            checkpoints.
    """
    for node in graph.nodes:
        item = node.transformation
        if item.emits_at_end and (endless := endless_source(node)):
            library_log().warning(
                "an operator emits when its input has ended, and a source never ends",
                operator=node.name,
                source=endless,
                remedy="use windows, a bounded source, or job.stop(drain=True)",
            )
        if item.waits_for_watermarks and (still := source_without_watermarks(node)):
            library_log().warning(
                "an operator emits nothing, as event time never moves",
                operator=node.name,
                line=item.line,
                without_watermarks=still,
                remedy="give that one a strategy with watermarks, as "
                "am.WatermarkStrategy.for_monotonous_timestamps(), or use windows of "
                "processing time",
            )
        has_checkpoints = config.checkpoints is not None or config.restore_from
        if item.no_checkpoints and has_checkpoints:
            raise InvalidArgumentError(
                "checkpoints",
                f"{item.no_checkpoints} (operator {node.name!r})",
                "Leave env.enable_checkpointing(...) and restore_from= out.",
            )


def _check_finished(config: JobConfig) -> None:
    """Refuse to promise what nothing remembers.

    Raises:
        InvalidArgumentError: If it matters whether the job has finished before, and that
            is written nowhere.
    """
    if config.if_finished != "run" and not config.is_resumable:
        raise InvalidArgumentError(
            "if_finished",
            f"it is {config.if_finished!r}, and whether a job has finished is written "
            "beside its checkpoints",
            "Give checkpoints a directory: "
            "env.enable_checkpointing(interval, directory=...).",
        )


def _check_replayable(graph: JobGraph, config: JobConfig) -> None:
    """Refuse to promise what a source cannot keep.

    Raises:
        InvalidArgumentError: If each record is to count exactly once, and a source
            cannot give again what it gave.
    """
    settings = config.checkpoints
    if settings is None or settings.mode is not CheckpointingMode.EXACTLY_ONCE:
        return
    for source in unreplayable_sources(graph):
        raise InvalidArgumentError(
            "mode",
            f"it is EXACTLY_ONCE, and source {source!r} cannot replay: the records "
            "that it emitted after the last checkpoint are lost when the job fails",
            "Use a source that resumes from an offset, e.g. "
            "env.from_async_iterable(factory, offset=...), or call "
            "env.enable_checkpointing(..., "
            "mode=am.CheckpointingMode.AT_LEAST_ONCE).",
        )
