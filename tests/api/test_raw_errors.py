"""What was once an error of Python's own says what is wrong, and what to write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.testing import OneInputHarness

Env = am.StreamExecutionEnvironment


def stream_of(*values: Any) -> Any:
    return Env().from_collection(list(values))


def windows_of(stream: Any) -> Any:
    size = timedelta(seconds=1)
    return stream.window(am.TumblingProcessingTimeWindows.of(size))


CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: am.SparkSource.from_stage(None), "path: None is not a path"),  # type: ignore[arg-type]
    (lambda: am.FileSink(None, "jsonl"), "None is not a path"),  # type: ignore[arg-type]
    (lambda: OneInputHarness("x"), "operator: 'x' is not an operator"),  # type: ignore[arg-type]
    (lambda: OneInputHarness(lambda value: value), "makes one"),  # type: ignore[arg-type, misc]
    (lambda: OneInputHarness(dict), "makes dict, which is no operator"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "told"), CALLS)
def test_a_wrong_argument_is_named(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(WrongTypeError) as caught:
        call()
    assert told in str(caught.value)


VERBS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda s: s.collect(progress=True), "collect() has no such argument"),
    (lambda s: s.collect(progress=True), "env.execute(progress=True)"),
    (lambda s: s.collect(limit=3), "Write take(count)"),
    (lambda s: s.collect(job_nam="x"), "Is job_name meant?"),
    (lambda s: s.count(timeout=3), "asyncio.timeout(seconds)"),
    (lambda s: s.take(), "Write take(count)"),
    (lambda s: s.show(rows=3), "Write show()"),
]


@pytest.mark.parametrize(("call", "told"), VERBS)
async def test_a_verb_says_what_it_takes(call: Callable[[Any], Any], told: str) -> None:
    with pytest.raises(am.UsageError) as caught:
        await call(stream_of(1))
    assert told in str(caught.value)


async def test_a_job_says_what_it_is_asked_for() -> None:
    env = Env()
    env.from_collection([1]).sink_to(lambda _: None)
    async with env.start() as started:
        job: Any = started
        for name, told in (
            ("status", "write job.state"),
            ("wait", r"write job.result\(\), awaited"),
            ("kill", r"write job.cancel\(\), awaited"),
            ("savepoint", r"write job.trigger_savepoint\(path\), awaited"),
            ("snapshto", "is job.snapshot meant"),
        ):
            with pytest.raises(AttributeError, match=told):
                getattr(job, name)
        assert not hasattr(job, "_repr_png_")
        with pytest.raises(InvalidArgumentError, match=r"name: ask\(\) has no such"):
            await job.ask(name="x")
        with pytest.raises(WrongTypeError, match=r"Write stop_with_savepoint\(path\)"):
            await job.stop_with_savepoint()
        with pytest.raises(WrongTypeError, match=r"operators\['collection'\]"):
            job.metrics()["num_records_out"]
        with pytest.raises(WrongTypeError, match=r"total\('x'\)"):
            job.metrics()["x"]
        await job.result()


def test_the_runtime_context_of_pyflink_is_said() -> None:
    class Count(am.KeyedProcessFunction[Any, Any, Any]):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            """Do nothing."""

    class OfWindow(am.ProcessWindowFunction[Any, Any, Any, Any]):
        def process(self, key: Any, context: Any, values: Any, out: Any) -> None:
            """Do nothing."""

    functions: list[Any] = [Count(), OfWindow()]
    for function in functions:
        with pytest.raises(AttributeError, match=r"open.*gets a context"):
            function.get_runtime_context()


ARITIES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda s: s.process(lambda value: None), "(value, context, out)"),
    (lambda s: s.key_by(len).process(lambda value: None), "(value, context, out)"),
    (lambda s: s.key_by(len).process_async(one), "(value, context, out)"),
    (lambda s: s.key_by(len).reduce(lambda a: a), "(reduced, record)"),
    (lambda s: windows_of(s.key_by(len)).apply(lambda a: a), "(key, window, records)"),
    (
        lambda s: windows_of(s.key_by(len)).process(lambda a: a),
        "(key, context, elements, out)",
    ),
    (
        lambda s: windows_of(s.key_by(len)).aggregate(am.count(), lambda a: a),
        "(key, window, records)",
    ),
    (lambda s: s.partition_custom(lambda key: 0, len), "(key, number of subtasks)"),
    (lambda s: s.with_latest_from(s, lambda a: a), "(record, latest)"),
]


async def one(value: Any) -> Any:
    return value


@pytest.mark.parametrize(("build", "gets"), ARITIES)
def test_a_function_of_too_few_arguments_is_told_what_it_gets(
    build: Callable[[Any], Any], gets: str
) -> None:
    with pytest.raises(WrongTypeError) as caught:
        build(stream_of("word"))
    assert gets in str(caught.value)
    assert "test_raw_errors.py" in str(caught.value)
