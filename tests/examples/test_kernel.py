"""What a notebook does with jobs, in a real kernel of Jupyter that is driven by hand."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]

# What all cells use: an endless source that goes on from where a savepoint was taken.
SETUP = """
import asyncio
import aiomailbox as am

seen, ended = [], []

async def numbers(offset):
    number = 0 if offset is None else offset + 1
    print("begun")
    try:
        while True:
            yield number
            number += 1
            await asyncio.sleep(0.005)
    finally:
        ended.append("source")

def sums():
    env = am.StreamExecutionEnvironment().enable_checkpointing(None)
    source = env.from_async_iterable(numbers, name="numbers", offset=lambda one: one)
    total = source.key_by(lambda one: "all").reduce(lambda left, right: left + right)
    total.name("total").uid("sum").sink_to(seen.append)
    return env

def left_behind():
    return [
        task for task in asyncio.all_tasks()
        if any("aiomailbox" in frame.f_code.co_filename for frame in task.get_stack())
    ]

job = None
"""


class Notebook:
    """A kernel, and what its cells have answered."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.connect()

    def connect(self) -> None:
        """Be its client, and prepare it."""
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.text(SETUP)

    def begin_again(self) -> None:
        """Forget all that it does."""
        self.client.stop_channels()
        self.manager.restart_kernel(now=True)
        self.connect()

    def begin(self, code: str) -> str:
        """Begin a cell; return what names it."""
        return str(self.client.execute(code))

    def messages(self) -> Iterator[dict[str, Any]]:
        while True:
            yield self.client.get_iopub_msg(timeout=60)

    def wait_for(self, cell: str, text: str) -> None:
        """Wait until a cell has printed a text, in however many pieces it comes."""
        printed = ""
        for message in self.messages():
            if message["parent_header"].get("msg_id") == cell:
                printed += "".join(texts_of([message]))
                assert not of_kind([message], "error"), message
            if text in printed:
                return

    def end(self, cell: str) -> list[dict[str, Any]]:
        """Wait for the end of a cell; return what came meanwhile, of whatever cell."""
        answers: list[dict[str, Any]] = []
        for message in self.messages():
            answers.append(message)
            is_mine = message["parent_header"].get("msg_id") == cell
            if is_mine and message["content"].get("execution_state") == "idle":
                break
        return answers

    def run(self, code: str) -> list[dict[str, Any]]:
        return self.end(self.begin(code))

    def text(self, code: str) -> str:
        """Run a cell; return what it has printed."""
        answers = self.run(code)
        assert not of_kind(answers, "error"), answers
        return "".join(texts_of(answers))


def texts_of(answers: list[dict[str, Any]]) -> list[str]:
    return [one["content"]["text"] for one in of_kind(answers, "stream")]


def of_kind(answers: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in answers if one["msg_type"] == kind]


def shown_as(answers: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return what was shown, or shown in its place: its id, and its HTML."""
    return [
        (
            one["content"].get("transient", {}).get("display_id", ""),
            one["content"]["data"].get("text/html", ""),
        )
        for one in answers
        if one["msg_type"] in {"display_data", "update_display_data", "execute_result"}
    ]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    folder = tmp_path_factory.mktemp("jupyter")
    kernels = folder / "kernels" / "here"
    kernels.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernels / "kernel.json").write_text(
        json.dumps({"argv": command, "display_name": "here", "language": "python"})
    )
    # Sockets in a directory that is nobody else's, of a short name: a free port may be
    # somebody's by the time that the kernel has started.
    with (
        tempfile.TemporaryDirectory(prefix="am-") as sockets,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("JUPYTER_PATH", str(folder))
        for variable in ("DATA", "CONFIG", "RUNTIME"):
            patch.setenv(f"JUPYTER_{variable}_DIR", str(folder / variable.lower()))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        manager = KernelManager(
            kernel_name="here", transport="ipc", ip=f"{sockets}/kernel"
        )
        manager.start_kernel(cwd=str(folder))
        try:
            notebook = Notebook(manager)
            yield notebook
            notebook.client.stop_channels()
        finally:
            manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook(kernel: Notebook, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    """Give the kernel; after a test that has failed there it begins again."""
    failed = request.session.testsfailed
    yield kernel
    if request.session.testsfailed > failed:
        kernel.begin_again()


def test_a_live_view_is_updated_in_place_while_other_cells_run(
    notebook: Notebook,
) -> None:
    answers = notebook.run("job = await sums().execute_async('live', progress=True)")
    [(view, _), *_] = shown_as(answers)
    assert view
    # Another cell, which knows nothing of it.
    answers, counts = [], set()
    while len(counts) < 3:
        answers += notebook.run("await asyncio.sleep(0.5); print('meanwhile')")
        updates = [html for shown, html in shown_as(answers) if shown == view]
        found = [re.findall(r"(\d+) rows", html) for html in updates]
        counts = {int(each[0]) for each in found if each}
    assert [int(each[0]) for each in found if each] == sorted(
        int(each[0]) for each in found if each
    )
    assert "<td>total</td>" in updates[-1]
    # All of them are of that place: no cell gets more and more output.
    assert {one["msg_type"] for one in answers} <= {
        "status", "execute_input", "stream", "update_display_data",
    }  # fmt: skip
    answers = notebook.run("await job.stop(drain=False); job")
    [(_, html)] = [shown for shown in shown_as(answers) if "<svg" in shown[1]]
    assert "live finished" in html
    while not any(
        "live finished" in html for shown, html in shown_as(answers) if shown == view
    ):
        answers += notebook.run("await asyncio.sleep(0.3)")


def test_interrupting_the_kernel_stops_the_job_of_the_cell(notebook: Notebook) -> None:
    ways = (
        "await sums().execute()",
        "async with sums().start() as job:\n    await job.result()",
        "await sums().from_async_iterable(numbers, offset=int).map(abs).collect()",
        "async for _ in sums().from_async_iterable(numbers, offset=int): pass",
    )
    for way in ways:
        notebook.text("ended.clear()")
        cell = notebook.begin(way)
        notebook.wait_for(cell, "begun")
        notebook.manager.interrupt_kernel()
        [error] = of_kind(notebook.end(cell), "error")
        assert error["content"]["ename"] in {"CancelledError", "KeyboardInterrupt"}
        lines = "\n".join(error["content"]["traceback"]).splitlines()
        assert len(lines) <= 15, "\n".join(lines)
        # The clean-up of an iterator that nobody has any more needs a turn of the loop.
        told = notebook.text(
            "while left_behind(): await asyncio.sleep(0.01)\nprint(ended)"
        )
        assert told == "['source']\n", way


def test_a_cell_that_is_run_again_takes_over_what_it_has_counted(
    notebook: Notebook,
) -> None:
    cell = "job = await sums().execute_async('sums', replace=job)"
    notebook.text("seen.clear(); job = None")
    notebook.text(cell)
    notebook.text("while len(seen) < 100: await asyncio.sleep(0.01)")
    notebook.text("first = job")
    notebook.text(cell)
    told = notebook.text(
        "count = len(seen)\n"
        "while len(seen) < count + 100: await asyncio.sleep(0.01)\n"
        "await job.stop(drain=False)\n"
        "print(first.state.value, job.state.value, first is not job)\n"
        "print(seen == [number * (number + 1) // 2 for number in range(len(seen))])"
    )
    assert told.endswith("finished finished True\nTrue\n")


def test_the_first_records_are_a_table_and_a_stream_is_a_drawing(
    notebook: Notebook,
) -> None:
    answers = notebook.run(
        "orders = am.StreamExecutionEnvironment().from_collection(\n"
        "    [{'item': '<tea>', 'price': 2.5}]).filter(bool)\n"
        "await orders.show()"
    )
    [(_, html)] = shown_as(answers)
    assert "<th>item</th><th>price</th>" in html
    assert "&lt;tea&gt;" in html
    [(_, html)] = shown_as(notebook.run("orders"))
    assert html.startswith("<svg")
    assert "filter" in notebook.text("print(orders.explain())")


def test_a_cell_that_starts_a_job_again_asks_whether_to_replace_it(
    notebook: Notebook,
) -> None:
    cell = "job = await sums().execute_async('twice')"
    notebook.text(cell)
    [error] = of_kind(notebook.run(cell), "error")
    assert error["content"]["ename"] == "UsageError"
    assert "replace=job" in error["content"]["evalue"]
    notebook.text("job = await sums().execute_async('twice', replace=job)")
    notebook.text("await job.cancel()")
    assert notebook.text("print(job.state.value)") == "canceled\n"
