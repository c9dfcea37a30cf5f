"""One run of a pipeline under a seed: life after life, until the job has succeeded."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import random
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVarTuple

from aiomailbox.api.environment import StreamExecutionEnvironment
from aiomailbox.checkpoint.settings import MEMORY_THRESHOLD, CheckpointingMode
from aiomailbox.clock import Clock
from aiomailbox.durations import millis, seconds
from aiomailbox.errors import CheckpointFailedError, JobCancelledError, JobFailedError
from aiomailbox.exchange.core.contract import BUFFER_SIZE_BYTES
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.ids import SubtaskId
from aiomailbox.policies import restart
from aiomailbox.records.events import StopMode
from aiomailbox.runtime.builder import AttemptPlan
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.deployment import new_embedded_job
from aiomailbox.runtime.host import AttemptEvents, EmbeddedHost
from aiomailbox.runtime.master import JobMaster
from aiomailbox.runtime.services import JobServices, PullHandover
from aiomailbox.state.backends import StateBackend
from aiomailbox.task.messages import (
    Acknowledged,
    CheckpointComplete,
    Command,
    TaskEvent,
)
from aiomailbox.task.stream_task import TaskState
from aiomailbox.testing.context import DEFAULT_START, ManualClock
from aiomailbox.testing.scripted_source import InjectedFailureError
from aiomailbox.testing.simulation.world import (
    Blow,
    Faults,
    Life,
    SimulatedFaultError,
    SimulatedSavepoint,
    SimulatedSink,
    World,
)
from aiomailbox.testing.virtual_time import DeadlockError, VirtualTimeLoop

# Runs a job on the loop of a simulation, where acknowledgements may get lost.


class SimulatedDeployment:
    """Runs all tasks on the loop that starts the job.

    Args:
        life: The life of the program.

    Attributes:
        job: The job that was deployed last.
    """

    parent_apart = False

    def __init__(self, life: Life) -> None:
        self._life = life
        self.job: JobMaster | None = None

    def deploy(
        self,
        graph: JobGraph,
        config: JobConfig,
        *,
        clock: Clock | None,
        handovers: Mapping[str, PullHandover],
    ) -> JobMaster:
        """Start the job on the running loop and return it."""
        job = new_embedded_job(
            graph, config, clock=clock, handovers=handovers, new_host=self._new_host
        )
        self.job = job
        job.start()
        return job

    def _new_host(
        self, graph: JobGraph, config: JobConfig, services: JobServices
    ) -> EmbeddedHost:
        return _SimulatedHost(graph, config, services, self._life)


class _SimulatedHost(EmbeddedHost):
    """Tells of what tasks have to say, or does not."""

    def __init__(
        self, graph: JobGraph, config: JobConfig, services: JobServices, life: Life
    ) -> None:
        super().__init__(graph, config, services)
        self._life = life

    def deploy(self, plan: AttemptPlan, events: AttemptEvents) -> None:
        """Make the tasks of an attempt."""
        life = self._life
        life.note(f"attempt {plan.number} from checkpoint {plan.restored_id}")
        # The job goes on, whatever became of the savepoint that was to end it.
        life.savepoint = None
        life.world.attempts += 1
        super().deploy(plan, _SimulatedEvents(events, life))
        life.world.light()

    def tell(self, tasks: Collection[SubtaskId] | None, command: Command) -> None:
        """Tell tasks a command; that a checkpoint is complete, now or later."""
        life, world = self._life, self._life.world
        if (
            not isinstance(command, CheckpointComplete)
            or not life.is_alive
            or not world.chance(world.faults.late_notification)
        ):
            super().tell(tasks, command)
            return
        what = f"late notification of checkpoint {command.checkpoint_id}"
        world.take(life.now(), what)
        asyncio.get_running_loop().call_later(
            world.random.uniform(0, 5), self._tell_late, world.attempts, tasks, command
        )

    def _tell_late(
        self, attempt: int, tasks: Collection[SubtaskId] | None, command: Command
    ) -> None:
        # What was said to an attempt that is over is not said to the next one.
        if self._life.world.attempts == attempt:
            super().tell(tasks, command)


class _SimulatedEvents:
    """Passes on the events of an attempt; acknowledgements late, or never."""

    def __init__(self, events: AttemptEvents, life: Life) -> None:
        self._events = events
        self._life = life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._events, name)

    def on_event(self, event: TaskEvent) -> None:
        """Take what a task reports; its part of a checkpoint late, or never."""
        life, world = self._life, self._life.world
        tell = self._events.on_event
        if not isinstance(event, Acknowledged):
            tell(event)
            return
        if not life.is_alive:
            return
        what = (
            f"acknowledgement of checkpoint {event.checkpoint_id} by task {event.task}"
        )
        life.note(what)
        if world.chance(world.faults.lost_acknowledgement):
            world.take(life.now(), f"lost {what}")
        elif world.chance(world.faults.late_acknowledgement):
            world.take(life.now(), f"late {what}")
            delay_s = world.random.uniform(0, 5)
            asyncio.get_running_loop().call_later(delay_s, tell, event)
        else:
            tell(event)


# An event loop on which threads take turns and time passes unevenly, by a seed.


_Ts = TypeVarTuple("_Ts")


_SLOW_S: Final = 5.0


_STEPS_PER_COLLECTION: Final = 20_000


class SimulationLoop(VirtualTimeLoop):
    """A virtual-time loop that is the same in each run with the same seed.

    Calls in an executor are made on the loop's own thread, a little later, and what
    they return arrives a little later still. Other threads are not waited for. Work
    takes time: each reading of the clock moves it.

    Args:
        life: Decides what is slow, and counts callbacks.
        start: Wall-clock time at the start, an aware datetime.
        steps_max: After how many callbacks `on_exhausted` is called.

    Attributes:
        is_exhausted: Whether there were so many.
        on_exhausted: The function to call then; by default it stops the loop.
    """

    def __init__(self, life: Life, start: datetime, steps_max: int) -> None:
        self._life = life
        self._steps_left = steps_max
        self.is_exhausted: bool = False
        self.on_exhausted: Callable[[], object] = self.stop
        super().__init__(start=start, real_wait_limit=0.0)
        self.clock = _UnevenClock(start, life.world.random.getrandbits(64))

    def now_s(self) -> float:
        """Return what `time` does without moving it."""
        return self.clock._monotonic

    def call_soon(
        self,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call a function in the next turn; a blow may come before it."""
        self._steps_left -= 1
        if self._steps_left == 0:
            # Once: what is left comes to its end.
            self.is_exhausted = True
            super().call_soon(self.on_exhausted)
        if self._steps_left % _STEPS_PER_COLLECTION == 0:
            gc.collect()
        self._life.step()
        return super().call_soon(callback, *args, context=context)

    def run_in_executor(
        self,
        executor: concurrent.futures.Executor | None,
        func: Callable[[*_Ts], Any],
        *args: *_Ts,
    ) -> asyncio.Future[Any]:
        """Call a function after a while, here; its result arrives after another."""
        del executor
        future: asyncio.Future[Any] = self.create_future()
        self.call_later(self._delay_s(), self._call_outside, future, func, args)
        return future

    def _call_outside(
        self, future: asyncio.Future[Any], func: Callable[..., Any], args: Any
    ) -> None:
        result, error = None, None
        try:
            result = func(*args)
        except Exception as raised:  # noqa: BLE001 -- the waiting caller gets it
            error = raised
        self.call_later(self._delay_s(), _arrive, future, result, error)

    def _delay_s(self) -> float:
        life = self._life
        draw = life.world.random
        if life.is_alive and life.world.chance(life.world.faults.slow_call):
            life.world.take(life.now(), "a slow call in a thread")
            return draw.uniform(0, _SLOW_S)
        return draw.choice((0.0, draw.uniform(0, 0.002), draw.uniform(0, 0.02)))

    def _may_be_woken_by_thread(self) -> bool:
        return False


class _UnevenClock(ManualClock):
    """A clock that is moved by reading it."""

    def __init__(self, start: datetime, seed: int) -> None:
        super().__init__(start)
        self._random = random.Random(seed)

    def monotonic(self) -> float:
        """Return the seconds since the clock was made; a moment later each time."""
        draw = self._random.random()
        # Now and then something else has had the processor.
        self._monotonic += draw * 1e-4 if draw < 0.85 else draw * 0.01
        return self._monotonic


def _arrive(
    future: asyncio.Future[Any], result: Any, error: BaseException | None
) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


Pipeline = Callable[[StreamExecutionEnvironment, SimulatedSink], object]


_JOB: Final = "simulation"


_MAX_PARALLELISM: Final = 128


# A program that died is not there to renew its lease: it runs out meanwhile.
_DOWNTIME_S: Final = (61.0, 120.0)


_LIVES_MAX: Final = 100


_ALIVE: Final = frozenset(
    {TaskState.CREATED, TaskState.RESTORING, TaskState.RUNNING, TaskState.FINISHING}
)


class RunFailedError(Exception):
    """A run did not come to its end; the cause is why."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The facts that stay the same in all lives of a run.

    Attributes:
        interval_s: From one checkpoint to the next.
        parallelisms: The parallelisms that the environment may have.
        steps_max: After how many callbacks a life has not come to its end.
        mode: How a recovery treats records after the checkpoint.
        backends: Where keyed state may be kept; nothing for what the pipeline says.
    """

    interval_s: float
    parallelisms: Sequence[int]
    steps_max: int
    mode: CheckpointingMode
    backends: Sequence[StateBackend]


def run_world(
    pipeline: Pipeline, world: World, setting: Setting, backoff_s: float = 0.1
) -> list[Any]:
    """Run a pipeline to its end, however many lives that takes.

    Returns:
        The committed rows.

    Raises:
        RunFailedError: If the job failed by itself, hangs or never ends.
    """
    prefix = "aiomailbox-simulation-"
    with (
        _collecting_by_steps(),
        tempfile.TemporaryDirectory(prefix=prefix) as directory,
    ):
        world.journals = Path(directory)
        return _run_lives(pipeline, world, setting, backoff_s)


def _run_lives(
    pipeline: Pipeline, world: World, setting: Setting, backoff_s: float
) -> list[Any]:
    start = DEFAULT_START
    parallelism = setting.parallelisms[0]
    for number in range(_LIVES_MAX):
        life = Life(world, number, parallelism)
        program = _Program(pipeline, life, setting, backoff_s, start)
        program.run()
        gc.collect()
        if world.is_complete:
            return [row for rows in world.committed.values() for row in rows]
        downtime = timedelta(seconds=world.random.uniform(*_DOWNTIME_S))
        start += timedelta(seconds=life.now()) + downtime
        if life.wish in {Blow.RESCALE, Blow.SAVEPOINT}:
            parallelism = world.random.choice(setting.parallelisms)
    raise RunFailedError(f"the job has not come to its end in {_LIVES_MAX} lives")


@contextlib.contextmanager
def _collecting_by_steps() -> Iterator[None]:
    """Leave it to the loop when garbage is collected.

    A generator that is found to be garbage is closed by a callback, and when the
    collector looks depends on all that the process has done before.
    """
    was_enabled, is_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    gc.collect()
    # What was there before is not looked at again and again: not either what has come
    # since the program froze what it had then.
    gc.freeze()
    try:
        yield
    finally:
        if not is_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()


class _Program:
    """One life of the program that runs the pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        life: Life,
        setting: Setting,
        backoff_s: float,
        start: datetime,
    ) -> None:
        self._pipeline = pipeline
        self._life = life
        self._setting = setting
        self._backoff_s = backoff_s
        self._deployment = SimulatedDeployment(life)
        self._loop = SimulationLoop(life, start, setting.steps_max)
        self._stopping: asyncio.Task[None] | None = None
        life.now = self._loop.now_s
        life.strike = self._strike

    def run(self) -> None:
        life = self._life
        # Late: it needs fsspec, which may not be installed.
        from aiomailbox.testing.simulation.files import mount, unmount

        self._place = mount(life)
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                self._run(runner)
            if life.is_alive:
                self._leave_journals()
        finally:
            life.is_alive = False
            life.world.ended_s = life.now()
            unmount(self._place)
        if life.savepoint is not None:
            life.world.savepoint = life.savepoint

    def _run(self, runner: asyncio.Runner) -> None:
        life = self._life
        try:
            runner.run(self._main())
        except JobCancelledError as error:
            if life.is_alive and life.wish is None:
                raise RunFailedError("the job was cancelled by its own code") from error
        except JobFailedError as error:
            if life.is_alive and not _is_simulated(error):
                raise RunFailedError("the job has failed") from error
            life.world.note(life.now(), f"life {life.number}: the job has failed")
        except DeadlockError as error:
            raise RunFailedError(
                "the job waits for an event that never comes"
            ) from error
        except asyncio.CancelledError as error:
            if not self._loop.is_exhausted:
                raise
            message = f"the job has not ended after {self._setting.steps_max} callbacks"
            raise RunFailedError(message) from error

    async def _main(self) -> None:
        life, draw = self._life, self._life.world.random
        life.world.light()
        main = asyncio.current_task()
        assert main is not None, "it runs in a task"
        self._loop.on_exhausted = main.cancel
        interval_s = self._setting.interval_s * draw.choice((0.3, 1.0, 3.0))
        env = StreamExecutionEnvironment(
            life.parallelism,
            _MAX_PARALLELISM,
            config=JobConfig(
                buffer_timeout=millis(draw.choice((100, 100, 0))),
                buffers_per_channel=draw.choice((2, 2, 1)),
                floating_buffers=draw.choice((8, 8, 0)),
                buffer_size_bytes=draw.choice((BUFFER_SIZE_BYTES, 256)),
                seed=draw.getrandbits(32),
            ),
        )
        env.configure(deployment=self._deployment)
        if self._setting.backends:
            env.configure(state_backend=draw.choice(self._setting.backends))
        is_still = life.world.faults == Faults.none()
        env.enable_checkpointing(
            seconds(interval_s),
            directory=f"{self._place}/checkpoints",
            mode=self._setting.mode,
            timeout=seconds(interval_s * 10 + 10),
            tolerable_failures=1_000 if is_still else draw.choice((0, 2, 1_000)),
            retained=draw.choice((1, 2)),
            journal_directory=self._journals if life.world.journal_appends else None,
            memory_threshold=draw.choice((MEMORY_THRESHOLD, 0)),
            **self._barriers(interval_s),
        )
        # Without faults, what fails fails by itself.
        env.configure(
            restart=restart.none()
            if is_still
            else restart.fixed_delay(1_000_000, self._backoff_s)
        )
        self._pipeline(env, SimulatedSink(life))
        async with env.start(_JOB, restore_from=self._restore_from()) as job:
            try:
                await job.result()
            finally:
                if self._stopping is not None:
                    await asyncio.wait((self._stopping,))

    def _barriers(self, interval_s: float) -> dict[str, Any]:
        """Return how barriers meet in this life."""
        draw = self._life.world.random
        concurrent = {"max_concurrent": draw.choice((1, 1, 2))}
        if self._setting.mode is CheckpointingMode.AT_LEAST_ONCE:
            return concurrent
        timeout_s = draw.uniform(0, interval_s)
        ways: list[dict[str, Any]] = [
            concurrent,
            {"unaligned": True},
            {"unaligned": True, "aligned_timeout": seconds(timeout_s)},
        ]
        return draw.choice(ways)

    def _restore_from(self) -> str:
        """Return what a service manager would: an argument that stays as it is."""
        savepoint = self._life.world.savepoint
        return "latest" if savepoint is None else f"{self._place}/{savepoint.path}"

    def _strike(self, blow: Blow) -> None:
        life = self._life
        job = self._deployment.job
        if job is None:
            life.world.light()
            return
        if blow is Blow.PROGRAM_CRASH:
            life.world.take(life.now(), "the program crashed")
            life.is_alive = False
            self._leave_journals()
            self._loop.call_soon(job.cancel)
            return
        if blow is Blow.TASK_CRASH:
            self._loop.call_soon(self._crash_task, job)
        elif blow is Blow.SAVEPOINT:
            self._loop.call_soon(self._stop, job)
        else:
            self._loop.call_soon(self._cancel, blow, job)

    def _crash_task(self, job: JobMaster) -> None:
        life = self._life
        if not life.is_alive:
            return
        alive = [task for task in job.tasks if task.lifecycle.state in _ALIVE]
        if alive:
            task = life.world.random.choice(alive)
            what = f"task {task.name} crashed while {task.lifecycle.state.value}"
            life.world.take(life.now(), what)
            task.fail(InjectedFailureError("simulated: the task has crashed"))
        life.world.light()

    def _leave_journals(self) -> None:
        """Let the next life find what finished calls are on the disk at this moment."""
        here = self._journals
        if here.exists():
            shutil.copytree(here, here.with_name(f"life-{self._life.number + 1}"))

    @property
    def _journals(self) -> Path:
        world = self._life.world
        assert world.journals is not None, "a run has a directory"
        return world.journals / f"life-{self._life.number}"

    def _cancel(self, blow: Blow, job: JobMaster) -> None:
        life = self._life
        if life.is_alive:
            life.world.take(life.now(), f"the job was cancelled ({blow.value})")
            life.wish = blow
            job.cancel()

    def _stop(self, job: JobMaster) -> None:
        if self._life.is_alive:
            self._stopping = self._loop.create_task(self._stop_with_savepoint(job))

    async def _stop_with_savepoint(self, job: JobMaster) -> None:
        life = self._life
        path = f"savepoints/{life.number}-{life.world.notes}"
        life.world.take(life.now(), f"stopping with {path}")
        try:
            completed = await job.stop_with_savepoint(
                f"{self._place}/{path}", StopMode.NO_DRAIN
            )
        except CheckpointFailedError as error:
            life.world.note(life.now(), f"no savepoint: {error}")
            life.world.light()
        else:
            life.world.note(life.now(), f"savepoint {completed.checkpoint_id}")
            life.wish = Blow.SAVEPOINT
            life.savepoint = SimulatedSavepoint(completed.checkpoint_id, path)


def _is_simulated(error: BaseException | None) -> bool:
    """Say whether a simulated fault is what a failure comes from."""
    while error is not None:
        if isinstance(error, SimulatedFaultError | InjectedFailureError):
            return True
        error = error.__cause__
    return False
