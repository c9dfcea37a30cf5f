"""Our jobs in Spark: marked so that they can be cancelled, failures made readable."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from aiomailbox.errors import AioMailboxError, SparkJobError

# The end of Spark's Java process, as its clients see it.


# How long a process may take to end after its connections have.
_ENDING_S: Final = 2.0


_REMEDY: Final = "The session cannot be used any more: stop it, and make a new one."


@contextmanager
def explaining_loss(session: Any, doing: str) -> Iterator[None]:
    """Say what happened if the body's connection to Spark is lost.

    Args:
        session: The session whose objects the body uses.
        doing: What the body does, for the message.

    Raises:
        SparkJobError: Then; from what told of it.
    """
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
    """Return what happened if an error reports a lost connection, else None; may block.

    Args:
        error: What came out of pyspark.
        session: The session.
        doing: What was being done, for the message.
    """
    if not _tells_of_loss(error):
        return None
    process = _java_process(session)
    code = None if process is None else _exit_code(process)
    if process is None or code is None:
        how = f"Spark closed the connection ({type(error).__name__}); its log says why"
    else:
        how = f"Spark's Java process (process {process.pid}) {_how(code)}"
    return SparkJobError(f"while {doing}, {how}. {_REMEDY}")


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
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"was ended by signal {name}{hint}"
    return f"was ended by signal {-code}"


def is_connect(df: Any) -> bool:
    """Say whether a DataFrame belongs to Spark Connect."""
    return type(df).__module__.startswith("pyspark.sql.connect")


def is_connect_session(session: Any) -> bool:
    """Say whether a session is one of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def url_for_spark(path: Path) -> str:
    """Return how Spark is told of a file or directory of this machine.

    Hadoop decodes nothing: for ``/a%20b`` it would look beside a directory ``/a b``.
    """
    return f"file://{path.absolute()}"


class JobTag:
    """A mark for the jobs of one thread.

    Classic jobs get it as their group: the session's own tags are not seen by
    ``toLocalIterator``. Spark Connect has the session's tags only.

    Args:
        df: A DataFrame of the session.
    """

    def __init__(self, df: Any) -> None:
        self.name: str = f"aiomailbox-{uuid.uuid4().hex}"
        self._session = df.sparkSession
        self._is_connect = is_connect(df)

    def tag_thread(self) -> None:
        """Mark all jobs that the calling thread starts from now on."""
        if self._is_connect:
            self._session.addTag(self.name)
        else:
            context = self._session.sparkContext
            context.setJobGroup(self.name, "aiomailbox reads a DataFrame")

    def cancel_jobs(self) -> bool:
        """Cancel the running jobs that have the mark; from any thread, may block.

        Returns:
            Whether none runs any more, as far as Spark knows: a cancelled job takes a
            moment to end.
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
        if isinstance(error, AioMailboxError):
            return error
        lost = lost_session_error(error, self._session, "a DataFrame was read")
        return lost or spark_job_error(error)


def spark_job_error(error: BaseException) -> SparkJobError:
    """Return an error that says what went wrong in Spark.

    A failure that comes through Java is recognised by its innermost cause, which holds the
    traceback of the Python worker. Call it in the thread that got the error: it asks
    the JVM.
    """
    java = getattr(error, "java_exception", None)
    text = f"{type(error).__name__}: {error}"
    if java is not None:
        with contextlib.suppress(Exception):
            while java.getCause() is not None:
                java = java.getCause()
            text = f"{java.getClass().getName()}: {java.getMessage()}"
    return SparkJobError(
        f"the Spark job that reads the DataFrame failed: {text}{_remedy(text)}"
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
    if "decommission" in text.lower():
        return (
            "\nAn executor was taken away while it had a task. Run again: what a "
            "journal, or a checkpoint of run_on(), has is not computed again. Spark "
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

    def begin(
        self,
        now_s: float,
        *,
        part: int,
        parts: int | None,
        skipped: int = 0,
        rows_left: int | None = None,
    ) -> None:
        """Begin to read.

        Args:
            now_s: The time.
            part: The partition that is read first.
            parts: How many there are.
            skipped: How many rows of it, and of those behind, come again first and are
                passed over.
            rows_left: How many rows there will be, if that is known.
        """
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

    def eta_s(self, now_s: float) -> float | None:
        """Return how long the rest takes if it goes on like this; None if unknown.

        Where the number of rows is unknown, the partitions to come are taken to be as
        long as those that were read.
        """
        if self.parts is not None and self.parts_done >= self.parts:
            return 0.0
        expected = self._rows_left
        ended = self.parts_done - self._first_part
        if expected is None and self.parts is not None and ended:
            parts = self.parts - self._first_part
            expected = self._ended_rows * parts // ended
        if expected is None or not self.rows:
            return None
        seen = self._skipped + self.rows
        return (now_s - self._begun_s) * max(0, expected - seen) / seen
