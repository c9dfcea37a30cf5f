"""Prints which modules a record, a mail, a checkpoint and a call of the API walk through.

Run it from the project's directory: ``python docs/walks.py``. Each walk is traced in a
real run: a module is entered when one of its functions is called on the way. The page
`docs/architecture.md` ends with what this prints.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import os
import sys
import tempfile
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import aiomailbox as am

PACKAGE: Final = Path(am.__file__).parent
SMALL: Final = 60
Entered = dict[str, set[str]]


def tracing(entered: Entered) -> Any:
    """Return a profiler that keeps the functions called, by their modules."""
    root = f"{PACKAGE}{os.sep}"

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            name = code.co_filename.removeprefix(root).removesuffix(".py")
            if code.co_name != "<module>":
                entered.setdefault(name, set()).add(code.co_qualname)

    return note


@contextmanager
def walk() -> Iterator[Entered]:
    """Yield what is entered in this block, also on threads that start in it."""
    entered: Entered = {}
    note = tracing(entered)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def in_new_threads() -> None:
    """Let calls of the running loop in threads start new ones, which are traced."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())


async def of_a_record() -> Entered:
    """From the source to the sink, over one exchange in this process."""
    entered: Entered = {}
    is_there = asyncio.Event()

    async def records() -> AsyncIterator[int]:
        yield 0  # connects what connects once
        await asyncio.sleep(0.2)
        sys.setprofile(tracing(entered))
        yield 1
        # The end of the source is another walk.
        await is_there.wait()

    def arrived(record: int) -> None:
        if record:
            sys.setprofile(None)
            is_there.set()

    env = am.StreamExecutionEnvironment()
    stream = env.from_async_iterable(records()).key_by(lambda n: n % 7)
    stream.reduce(max).sink_to(am.FunctionSink(arrived))
    await env.execute("walk")
    sys.setprofile(None)
    return entered


class Between:
    """Traces, in each worker, what follows its first record until one has arrived."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.entered: Entered = {}

    def leaves(self, record: int) -> int:
        """Begin to trace at the first record that leaves."""
        if record >= 50 and not self.entered:
            sys.setprofile(tracing(self.entered))
        return record

    def arrives(self, key: int, _: int) -> int:
        """Write down what has been entered so far."""
        sys.setprofile(None)
        lines = [f"{m} {f}" for m, names in self.entered.items() for f in names]
        Path(self.place, str(os.getpid())).write_text("\n".join(lines), "utf-8")
        if self.entered:
            sys.setprofile(tracing(self.entered))
        return key


async def of_a_record_between_processes() -> Entered:
    """From a task in one worker process to one in another."""
    with tempfile.TemporaryDirectory() as place:
        between = Between(place)
        env = am.StreamExecutionEnvironment(parallelism=2)
        env.configure(deployment=am.Processes(2))
        numbers = env.from_collection(range(500)).rebalance().map(between.leaves)
        await numbers.key_by(lambda n: n % 7).reduce(between.arrives).collect()
        entered: Entered = {}
        for line in lines_below(Path(place)):
            module, _, function = line.partition(" ")
            entered.setdefault(module, set()).add(function)
        return entered


def lines_below(place: Path) -> list[str]:
    """Return the lines of all files in a directory."""
    texts = [file.read_text("utf-8") for file in place.iterdir()]
    return [line for text in texts for line in text.splitlines()]


async def of_a_mail() -> Entered:
    """From `submit` to its result."""
    async with am.MailboxProcessor() as mailbox:
        await mailbox.submit(int)
        with walk() as entered:
            await mailbox.submit(int)
        return entered


async def of_a_checkpoint() -> Entered:
    """From the trigger until it is completed: aligned, two tasks, embedded."""
    more = asyncio.Event()

    async def records(_: int | None) -> AsyncIterator[int]:
        yield 1
        await more.wait()

    with tempfile.TemporaryDirectory() as place:
        env = am.StreamExecutionEnvironment()
        env.enable_checkpointing(am.hours(1), directory=place)
        stream = env.from_async_iterable(records, offset=int).key_by(lambda n: n % 7)
        stream.reduce(max).sink_to(am.FunctionSink(print_nothing))
        async with env.start("walk") as job:
            await job.trigger_checkpoint()
            with walk() as tracing_on:
                in_new_threads()
                await job.trigger_checkpoint()
                # Threads that are traced go on to be.
                entered = {name: set(found) for name, found in tracing_on.items()}
            more.set()
            await job.result()
    return entered


def print_nothing(_: object) -> None:
    """Take a record."""


def of_map() -> Entered:
    """`stream.map(fn)` until the operator exists."""
    stream = am.StreamExecutionEnvironment().from_collection([1])
    with walk() as entered:
        made = stream.map(abs)
        made._origins[0].transformation.factory()
    return entered


def of_windows() -> Entered:
    """`key_by().window().aggregate()` until the operator exists."""
    stream = am.StreamExecutionEnvironment().from_collection([1])
    with walk() as entered:
        windows = am.TumblingEventTimeWindows.of(am.seconds(1))
        made = stream.key_by(abs).window(windows).aggregate(am.count())
        made._origins[0].transformation.factory()
    return entered


async def of_a_job() -> Entered:
    """A job of ten records: everything that is called."""
    with walk() as entered:
        env = am.StreamExecutionEnvironment()
        await env.from_collection(range(10)).map(abs).collect()
    return entered


def pure_lines(path: Path) -> int:
    """Count lines without docstrings, comments, blank lines and imports."""
    text, left_out = path.read_text("utf-8"), set[int]()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            left_out |= lines_of(node.body[0])
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= lines_of(node)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and n not in left_out
        for n, line in enumerate(text.splitlines(), 1)
    )


def lines_of(node: ast.stmt) -> set[int]:
    """Return the lines of a statement."""
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


async def main() -> None:
    """Print all walks, then what there is to walk through."""
    # A collection calls what has nothing to do with a walk.
    gc.disable()
    walks = {
        "a record from source to sink, one exchange": await of_a_record(),
        "a record between two processes": await of_a_record_between_processes(),
        "a mail, from `submit` to its result": await of_a_mail(),
        "an aligned checkpoint, embedded": await of_a_checkpoint(),
        "`stream.map(fn)` until the operator exists": of_map(),
        "`key_by().window().aggregate()` until the operator exists": of_windows(),
        "a job of ten records, everything called": await of_a_job(),
    }
    lines: list[str] = []
    for name, entered in walks.items():
        functions = sum(map(len, entered.values()))
        lines.append(f"### {name}: {len(entered)} modules, {functions} functions\n")
        modules = ", ".join(f"`{module}`" for module in sorted(entered))
        lines.append(textwrap.fill(modules, 98, break_on_hyphens=False) + "\n")
    files = list(PACKAGE.rglob("*.py"))
    sizes = {path: pure_lines(path) for path in files}
    small = [p for p, n in sizes.items() if n < SMALL and p.name != "__init__.py"]
    count = round(sum(sizes.values()), -2)
    lines.append(f"### the whole package: {len(files)} modules\n")
    lines.append(
        f"{len(small)} of them are under {SMALL} lines of code; it has {count:,} lines of "
        "code without docstrings, comments and imports.\n"
    )
    sys.stdout.write("\n".join(lines))


if __name__ == "__main__":
    asyncio.run(main())
