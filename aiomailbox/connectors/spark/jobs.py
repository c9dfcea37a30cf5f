"""Our jobs in Spark: marked so that they can be cancelled, failures made readable."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from aiomailbox.errors import AioMailboxError, SparkJobError, lasting

# The end of Spark's Java process, as its clients see it.


_LOOK_S: Final = 5.0
_FETCHER: Final = "task-result-getter-"
# How long a process may take to end after its connections have.
_ENDING_S: Final = 2.0
_REMEDY: Final = "The session cannot be used any more: stop it, and make a new one."
MEMORY_REMEDY: Final = (
    'Let Spark\'s tasks send their rows (SparkSource(df, read="push")), or write them to '
    "files (SparkSource(df, stage=directory)), make partitions smaller "
    "(SparkSource(df, partitions=N), or df.repartition(N)), or give the driver more "
    "memory (spark.driver.memory, set before the session is made)."
)
# What errors of a Java process say that is about to end.
_ENDING: Final = re.compile(
    "SparkContext was shut down|stopped SparkContext|does not exist in the JVM|"
    "OutOfMemoryError|does not explain any more"
)
# By Spark's own handler, and by the option ExitOnOutOfMemoryError of Java.
_MEMORY_CODES: Final = (52, 3)


@contextmanager
def explaining_loss(session: Any, doing: str) -> Iterator[None]:
    """Say what happened if the body's connection to Spark is lost."""
    try:
        yield
    except Exception as error:
        lost = lost_session_error(error, session, doing)
        if lost is None:
            raise
        raise lost from error


def lost_session_error(
    error: BaseException, session: Any, doing: str
) -> SparkJobError | None:
    """Return what happened if an error tells of a lost connection; may block."""
    is_loss = _tells_of_loss(error)
    # What is asked of a process that is ending fails in many ways.
    if not is_loss and not _ENDING.search(text_of(error)):
        return None
    process = _java_process(session)
    code = None if process is None else _exit_code(process)
    if process is not None and code is not None:
        how = f"Spark's Java process (process {process.pid}) {_how(code)}"
        remedy = _REMEDY + (f" {MEMORY_REMEDY}" if code in _MEMORY_CODES else "")
        return lasting(SparkJobError(f"while {doing}, {how}. {remedy}"))
    if not is_loss:
        return None
    how = f"Spark closed the connection ({type(error).__name__}); its log says why"
    return SparkJobError(f"while {doing}, {how}. {_REMEDY}")


@contextmanager
def watching_driver(
    session: Any,
    does: str,
    on_death: Callable[[SparkJobError], None],
    look: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Look meanwhile, in a thread, whether a driver that gives no rows still can.

    The threads that fetch the results of tasks live as long as Spark does. One that
    memory ran out in is gone without a word, and its job waits for ever. Nothing is
    looked at on Spark Connect, whose driver is not here.
    """
    over = threading.Event()

    def watch() -> None:
        before = _driver_threads(session)
        while before is not None and not over.wait(_LOOK_S):
            now = _driver_threads(session)
            dead = [] if now is None else died_since(before, now)
            if dead:
                on_death(_no_memory_error(does, dead))
            if dead or now is None:
                return
            # The session may end meanwhile.
            with contextlib.suppress(Exception):
                look()

    threading.Thread(target=watch, name="spark-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def died_since(before: str, now: str) -> list[str]:
    """Return the threads that fetch results and have died, of Java's lists of threads.

    They are numbered as they begin, and one that died is replaced by the next number.
    So one that both began and died between two looks is missed in the numbers.
    """
    had, has = _fetching(before), _fetching(now)
    born = range(max(had, default=-1) + 1, max(has, default=-1) + 1)
    return [f"{_FETCHER}{each}" for each in sorted((had | set(born)) - has)]


def _fetching(threads: str) -> set[int]:
    return {int(each) for each in re.findall(rf"\b{_FETCHER}(\d+)\b", threads)}


def _driver_threads(session: Any) -> str | None:
    """Return Java's list of the driver's threads; None if it cannot be asked."""
    with contextlib.suppress(Exception):
        threads = session._jvm.java.lang.Thread.getAllStackTraces().keySet()
        return str(threads.toString())
    return None


def _no_memory_error(does: str, dead: list[str]) -> SparkJobError:
    return lasting(
        SparkJobError(
            f"while {_running(does)}, Spark's driver ran out of memory: {', '.join(dead)} died, "
            "and the rows that it had to fetch never come (the driver's log has the "
            f"OutOfMemoryError). {MEMORY_REMEDY}"
        )
    )


def text_of(error: BaseException) -> str:
    """Return an error as text; that of Java is asked for it, and may be gone."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception as gone:  # noqa: BLE001 -- whatever a lost connection raises
        return f"{name}, which Spark does not explain any more ({type(gone).__name__})"


def _tells_of_loss(error: BaseException | None) -> bool:
    while error is not None:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if kinds & {"EOFError", "ConnectionError", "Py4JNetworkError"}:
            return True
        error = error.__cause__ or error.__context__
    return False


def _java_process(session: Any) -> subprocess.Popen[bytes] | None:
    """Return the process that pyspark has started, if it did."""
    with contextlib.suppress(Exception):
        process = session.sparkContext._gateway.proc
        if isinstance(process, subprocess.Popen):
            return process
    return None


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        return None


def _how(code: int) -> str:
    if code in _MEMORY_CODES:
        return (
            f"ended with exit code {code}: it ran out of memory "
            "(java.lang.OutOfMemoryError)"
        )
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"was ended by signal {name}{hint}"
    return f"was ended by signal {-code}"


def is_connect(owned: Any) -> bool:
    """Say whether a DataFrame, or a session, is one of Spark Connect."""
    return type(owned).__module__.startswith("pyspark.sql.connect")


def has_stopped(session: Any) -> bool:
    """Say whether a session was stopped, without asking its Java process."""
    if hasattr(session, "is_stopped"):
        return bool(session.is_stopped)
    context = getattr(session, "_sc", None)
    return context is not None and getattr(context, "_jsc", None) is None


def master_of(session: Any) -> str:
    """Return what Spark runs on; "" for a server that does not tell."""
    with contextlib.suppress(Exception):
        return str(session.conf.get("spark.master"))
    return ""


def is_one_process(session: Any) -> bool:
    """Say whether Spark's driver and executors are one process of this machine."""
    return re.fullmatch(r"local(\[.*\])?", master_of(session)) is not None


def url_for_spark(path: Path) -> str:
    """Return how Spark is told of a file or directory of this machine.

    Hadoop decodes nothing: for ``/a%20b`` it would look beside a directory ``/a b``.
    """
    return f"file://{path.absolute()}"


class JobTag:
    """A mark for the jobs of one thread.

    Classic jobs get it as their group: the session's own tags are not seen by
    ``toLocalIterator``. Spark Connect has the session's tags only.
    """

    def __init__(self, df: Any, does: str = "reads the DataFrame") -> None:
        self._does = does
        self._death: SparkJobError | None = None
        self.name: str = f"aiomailbox-{uuid.uuid4().hex}"
        self._session = df.sparkSession
        self._is_connect = is_connect(df)

    def tag_thread(self) -> None:
        """Mark all jobs that the calling thread starts from now on."""
        if self._is_connect:
            self._session.addTag(self.name)
        else:
            context = self._session.sparkContext
            context.setJobGroup(self.name, f"aiomailbox {self._does}")

    def watching(
        self, look: Callable[[], object] = lambda: None
    ) -> AbstractContextManager[None]:
        """Cancel the jobs if the driver can give no results; `explain` says so."""
        return watching_driver(self._session, self._does, self._on_death, look)

    def starved_jobs(self) -> set[int]:
        """Return the jobs that no task runs of, while tasks of those with the mark run."""
        tracker = self._session.sparkContext.statusTracker()
        running = {
            stage: found.numActiveTasks
            for stage in tracker.getActiveStageIds()
            if (found := tracker.getStageInfo(stage)) is not None
        }

        def tasks(job: int) -> list[int]:
            """Return how many tasks run of each stage of a job that has begun."""
            found = tracker.getJobInfo(job)
            stages = [] if found is None else found.stageIds
            return [running[stage] for stage in stages if stage in running]

        jobs = set(tracker.getActiveJobsIds())
        ours = jobs & set(tracker.getJobIdsForGroup(self.name))
        if not any(any(tasks(job)) for job in ours):
            return set()
        return {job for job in jobs - ours if (found := tasks(job)) and not any(found)}

    def cancel_jobs(self) -> bool:
        """Cancel the running jobs that have the mark; say whether none runs any more.

        From any thread; may block. A cancelled job takes a moment to end.
        """
        # Stopping the session has cancelled the jobs, too.
        with contextlib.suppress(Exception):
            if self._is_connect:
                self._session.interruptTag(self.name)
                return True
            context = self._session.sparkContext
            context.cancelJobGroup(self.name)
            tracker = context.statusTracker()
            ours = set(tracker.getJobIdsForGroup(self.name))
            return ours.isdisjoint(tracker.getActiveJobsIds())
        return True

    def explain(self, error: BaseException) -> Exception:
        """Return an error that says what went wrong; in the thread that got it."""
        if self._death is not None and not isinstance(error, AioMailboxError):
            return self._death
        return explained(error, self._session, self._does)

    def _on_death(self, death: SparkJobError) -> None:
        self._death = death
        self.cancel_jobs()


def explained(error: BaseException, session: Any, does: str) -> Exception:
    """Return an error that says what went wrong; in the thread that got it."""
    if isinstance(error, AioMailboxError):
        return error
    lost = lost_session_error(error, session, _running(does))
    if lost is None and has_stopped(session):
        return SparkJobError(
            f"the Spark session was stopped when {_running(does)}: make the DataFrame "
            "again in a session that runs"
        )
    return lost or spark_job_error(error, does)


def _running(does: str) -> str:
    return f"a Spark job that {does} ran"


def spark_job_error(error: BaseException, does: str) -> SparkJobError:
    """Return an error that says what went wrong in Spark.

    A failure that comes through Java is recognised by its innermost cause that says
    something, which holds the traceback of the Python worker. Call it in the thread
    that got the error: it asks the JVM.
    """
    said = _said_by_java(error) or [text_of(error)]
    whole = "\n".join(said)
    task = _LOST_TASK.search(whole)
    where = (
        "" if task is None else f" in task {task[1]} of stage {task[2]} on {task[3]}"
    )
    if _DEAD_WORKER in whole:
        text = f"the Python worker that ran it died{where}. {_DIED}"
    elif no_memory := _NO_MEMORY.search(whole):
        text = f"Java ran out of memory{where} ({no_memory[0]}). {_SHORT_OF_MEMORY}"
    else:
        text = _FRAMES.sub("", said[-1]).strip()
        text += _remedy(text)
    failure = SparkJobError(f"the Spark job that {does} failed: {text}")
    return lasting(failure) if _OF_DATA.search(whole) else failure


def _said_by_java(error: BaseException) -> list[str]:
    """Return the messages of a Java exception and of its causes, the innermost last."""
    java = getattr(error, "java_exception", None)
    said: list[str] = []
    with contextlib.suppress(Exception):
        while java is not None:
            name, message = java.getClass().getName(), java.getMessage()
            # Where there is none, the one around it says more.
            if message is not None or not said:
                said.append(f"{name}: {message}")
            java = java.getCause()
    return said


_DEAD_WORKER: Final = "Python worker exited unexpectedly"
_DIED: Final = (
    "It was killed by a signal, as the system does when memory runs out, or crashed in "
    "native code. Make partitions smaller (df.repartition(N)) or let workers have more "
    "memory (spark.executor.memoryOverhead; locally the machine's), and see the "
    "system's log; where native code crashed is said with "
    "spark.python.worker.faulthandler.enabled=true."
)
# A result is lost where the driver has no room to fetch it.
_NO_MEMORY: Final = re.compile(r"java\.lang\.OutOfMemoryError|TaskResultLost")
_SHORT_OF_MEMORY: Final = (
    f"{MEMORY_REMEDY} On a cluster, that of a task is spark.executor.memory."
)
# The classes of SQL for values and for names: a query that is run again meets them again.
_OF_DATA: Final = re.compile(r"SQLSTATE: (?:22|42)")
_LOST_TASK: Final = re.compile(
    r"Lost task ([\d.]+) in stage ([\d.]+) \(TID \d+\) \(([^()]*)\)"
)
# Lines of a Java stack trace.
_FRAMES: Final = re.compile(
    r"^[ \t]+(at [\w.$]+[./(<].*|\.\.\. \d+ more)\n?", re.MULTILINE
)
# What a Python worker of Spark says that is not the Python of this program.
_OTHER_PYTHON: Final = re.compile("No module named 'pyarrow'|PYTHON_VERSION_MISMATCH")


def _remedy(text: str) -> str:
    """Return what can be done about a failure that is of no program, "" for others."""
    if _OTHER_PYTHON.search(text):
        return (
            "\nSpark's Python workers run a Python that is not that of this program, or "
            "has no pyarrow. Set PYSPARK_PYTHON before the session is made, e.g. to "
            f"{sys.executable}, or use aiomailbox.connectors.spark.local_session, which "
            "does so; executors on other machines need pyarrow."
        )
    if "spark.driver.maxResultSize" in text:
        return f"\n{MEMORY_REMEDY}"
    if "decommission" in text.lower():
        return (
            "\nAn executor was taken away while it had a task. Run again: a journal, or "
            "a checkpoint of run_on(), saves its results from being computed again. Spark "
            "moves shuffle files away in time with "
            "spark.storage.decommission.enabled=true."
        )
    return ""


# How far the reading of a DataFrame is, and how long the rest will take.


class ReadProgress:
    """Counts rows and partitions; pure, time is an argument.

    Attributes:
        rows: Rows that were emitted since the reader began.
        parts: How many partitions there are; None if unknown.
        parts_done: Partitions that were read, those before the restart too.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.parts: int | None = None
        self.parts_done = 0
        self._begun_s = 0.0
        self._rows_left: int | None = None
        self._first_part = 0
        self._skipped = 0
        # How many rows the partitions had that were read to their ends.
        self._ended_rows = 0
        self._is_over = False

    def begin(
        self,
        now_s: float,
        *,
        part: int,
        parts: int | None,
        skipped: int = 0,
        rows_left: int | None = None,
    ) -> None:
        """Begin to read."""
        self._begun_s, self._skipped, self._rows_left = now_s, skipped, rows_left
        self._first_part = self.parts_done = part
        self.parts = parts

    def end_part(self, part: int) -> None:
        """A partition was read."""
        self.parts_done = part + 1
        self._ended_rows = self._skipped + self.rows

    def end(self, parts: int) -> None:
        """All is read, and so many partitions there were."""
        self.parts = self.parts_done = parts

    def close(self) -> None:
        """Nothing more is read, whatever is left."""
        self._is_over = True

    def eta_s(self, now_s: float) -> float | None:
        """Return how long the rest takes if it goes on like this.

        None if unknown, and when reading was ended before the end.

        Where the number of rows is unknown, the partitions to come are taken to be as
        long as those that were read.
        """
        if self.parts is not None and self.parts_done >= self.parts:
            return 0.0
        if self._is_over:
            return None
        expected = self._rows_left
        ended = self.parts_done - self._first_part
        if expected is None and self.parts is not None and ended:
            parts = self.parts - self._first_part
            expected = self._ended_rows * parts // ended
        if expected is None or not self.rows:
            return None
        seen = self._skipped + self.rows
        return (now_s - self._begun_s) * max(0, expected - seen) / seen
