"""Our jobs in Spark: marked so that they can be cancelled, failures made readable."""

from __future__ import annotations

import contextlib
import re
import sys
import uuid
from pathlib import Path
from typing import Any, Final

from aiomailbox.connectors.spark.lost import lost_session_error
from aiomailbox.errors import AioMailboxError, SparkJobError

__all__ = [
    "JobTag",
    "is_connect",
    "is_connect_session",
    "spark_job_error",
    "url_for_spark",
]


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
