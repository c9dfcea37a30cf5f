"""What a job's tasks do or wait for, as text."""

from __future__ import annotations

import asyncio
from typing import Any

from aiomailbox.runtime import await_tree


async def look_up(self: Any, run: Any) -> None:
    await asyncio.sleep(3600)


async def test_the_text_names_tasks_states_and_the_users_line(bench: Any) -> None:
    source = bench.source([1], ends=False)
    job = bench.deploy(bench.operator(source, "enrich", hooks={"run": look_up}))
    assert await_tree(job) == "job 'job': created"
    await asyncio.sleep(1)
    text = await_tree(job)
    assert text.startswith("job 'job': running\n  task 'source (1/1)': running\n")
    assert "  task 'enrich (1/1)': running\n    <MailboxProcessor" in text
    assert "in look_up (" in text
    assert f"{__file__}:" in text
    # Outermost first.
    assert text.index("in StreamTask._run", text.index("enrich")) < text.index(
        "look_up"
    )


async def test_a_job_that_ended_waits_for_nothing(bench: Any) -> None:
    job = bench.deploy(bench.operator(bench.source([1])))
    await job.wait()
    text = await_tree(job)
    assert text.startswith("job 'job': finished\n  task 'source (1/1)': finished\n")
    assert " in " not in text
