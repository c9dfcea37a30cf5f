"""The end of Spark's Java process, as its clients see it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from aiomailbox.errors import SparkJobError

__all__ = ["explaining_loss", "lost_session_error"]

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
