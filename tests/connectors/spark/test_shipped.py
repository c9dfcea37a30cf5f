"""Functions of ours say what a Spark worker lacks that cannot run them."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import cloudpickle
import msgspec
import pytest

from aiomailbox.connectors.spark.jobs import spark_job_error
from aiomailbox.connectors.spark.shipped import shipped


def doubled(part: int, batches: Any) -> Any:
    for batch in batches:
        yield part * batch


def elsewhere(part: int, batches: Any) -> Any:
    return doubled(part, batches)


elsewhere.__module__ = "no.such.module"


def as_sent(work: Any = doubled) -> Any:
    sys.modules.setdefault(__name__, sys.modules[doubled.__module__])
    return pickle.loads(cloudpickle.dumps(shipped(work, 2)))


def test_a_worker_that_has_all_runs_the_function() -> None:
    assert list(as_sent()([1, 2])) == [2, 4]


def test_a_worker_with_another_python_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "version_info", (3, 9, 0, "final", 0))
        function = shipped(elsewhere, None)
    with pytest.raises(RuntimeError, match=r"comes from Python 3\.9.*PYSPARK_PYTHON"):
        list(function([]))


def test_a_worker_with_another_msgspec_or_none_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(msgspec, "__version__", "0.1.0")
        function = shipped(elsewhere, None)
    with pytest.raises(RuntimeError, match=r"install msgspec==0\.1\.0"):
        list(function([]))
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(RuntimeError, match="has no msgspec"):
        list(function([]))


def test_a_worker_without_the_library_says_so() -> None:
    with pytest.raises(RuntimeError, match="ship_library"):
        list(as_sent(elsewhere)([]))


def test_an_executor_that_was_taken_away_is_told_from_a_fault_of_the_program() -> None:
    lost = "ExecutorLostFailure (executor 1 exited: Executor decommission finished)"
    assert "Run again" in str(spark_job_error(RuntimeError(lost), "runs"))
    assert "Run again" not in str(
        spark_job_error(RuntimeError("division by zero"), "runs")
    )


def test_workers_of_another_python_are_told_from_a_fault_of_the_program() -> None:
    foreign = [
        "PythonException: ModuleNotFoundError: No module named 'pyarrow'",
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9",
    ]
    for text in foreign:
        said = str(spark_job_error(RuntimeError(text), "runs"))
        assert (
            f"Set PYSPARK_PYTHON before the session is made, e.g. to {sys.executable}"
            in said
        )
    assert "PYSPARK" not in str(
        spark_job_error(RuntimeError("No module named 'shop'"), "runs")
    )
