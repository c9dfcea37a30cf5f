"""What the environment's settings say holds, unless a job has settings of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import JobFailedError, JobFinishedError
from aiomailbox.runtime.deployment import Embedded

Env: Any = am.StreamExecutionEnvironment


def environment(place: Path, **settings: object) -> am.StreamExecutionEnvironment:
    config = am.JobConfig(job_id="orders", **settings)  # type: ignore[arg-type]
    env = am.StreamExecutionEnvironment(config=config)
    return env.enable_checkpointing(am.seconds(10), directory=place)


def count(env: am.StreamExecutionEnvironment, uid: str = "sum") -> None:
    keyed = env.from_collection([1, 2]).uid("numbers").key_by(lambda number: "all")
    keyed.reduce(lambda one, other: one + other).uid(uid).sink_to(lambda number: None)


async def test_execute_takes_identity_and_restore_from_the_settings(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path, restore_from=tmp_path / "nowhere")
    count(env)
    with pytest.raises(JobFailedError, match="nowhere"):
        await env.execute("any name")
    count(env)
    await env.execute("any name", restore_from="latest")
    assert (tmp_path / "orders").is_dir()


async def test_execute_takes_from_the_settings_what_a_finished_job_does(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path, if_finished="refuse")
    count(env)
    await env.execute()
    count(env)
    with pytest.raises(JobFailedError) as caught:
        await env.execute()
    assert isinstance(caught.value.__cause__, JobFinishedError)
    count(env)
    assert (await env.execute(if_finished="run")).finished_before is None


async def test_execute_takes_from_the_settings_whether_state_may_be_left(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path)
    inbox: am.Inbox[int] = am.Inbox(10)
    env.enable_checkpointing(
        am.seconds(10), directory=tmp_path, mode=am.CheckpointingMode.AT_LEAST_ONCE
    )
    numbers = env.from_source(inbox).uid("inbox").key_by(lambda number: "all")
    numbers.reduce(lambda one, other: one + other).uid("sum").sink_to(lambda _: None)
    async with env.start() as job:
        await inbox.put(1)
        await job.stop_with_savepoint(tmp_path / "savepoint")
    allowed = environment(
        tmp_path / "other",
        restore_from=tmp_path / "savepoint",
        allow_unmatched_state=True,
    )
    count(allowed, "total")
    await allowed.execute()
    refused = environment(tmp_path / "third", restore_from=tmp_path / "savepoint")
    count(refused, "total")
    with pytest.raises(JobFailedError, match="allow_unmatched_state"):
        await refused.execute()


# What 0.1 called it, and the words that its error names.
OLD_SPELLINGS: list[tuple[Callable[[], Any], str]] = [
    (lambda: am.JobConfig(flush_interval_ms=1), "buffer_timeout=am.millis"),  # type: ignore[call-arg]
    (lambda: am.JobConfig(cancel_timeout_s=1), "cancel_timeout=am.seconds"),  # type: ignore[call-arg]
    (lambda: am.JobConfig(heartbeat_timeout_s=9), "heartbeat_timeout=am.seconds"),  # type: ignore[call-arg]
    (lambda: am.JobConfig(latency_interval_ms=9), "latency_interval=am.millis"),  # type: ignore[call-arg]
    (lambda: am.JobConfig(stall_threshold_ms=90), "stall_threshold=am.millis"),  # type: ignore[call-arg]
    (lambda: am.JobConfig(stuck_after_s=9), "stuck_after=am.seconds"),  # type: ignore[call-arg]
    (
        lambda: am.JobConfig(buffer_debloat_target_ms=9),  # type: ignore[call-arg]
        "buffer_debloat_target=am.millis",
    ),
    (lambda: Env().configure(stuck_after_s=9), "stuck_after=am.seconds"),
    (lambda: Env().set_restart_strategy(None), "env.configure(restart="),
    (lambda: Env().set_buffer_timeout(0), "env.configure(buffer_timeout="),
    (
        lambda: Env().disable_operator_chaining(),
        "env.configure(operator_chaining=False)",
    ),
    (lambda: Env().deployment, "env.configure(deployment=am.Processes(4))"),
    (lambda: setattr(Env(), "deployment", None), "env.configure(deployment="),
    (lambda: Env().state_backend, "env.configure(state_backend="),
    (lambda: setattr(Env(), "state_backend", None), "env.configure(state_backend="),
    (
        lambda: am.pipeline(lambda rows: rows).run_on(checkpoint_interval=1),  # type: ignore[call-arg]
        "checkpoints=am.CheckpointConfig",
    ),
]


@pytest.mark.parametrize(("old", "new"), OLD_SPELLINGS)
def test_the_error_of_an_old_spelling_names_the_new_one(
    old: Callable[[], Any], new: str
) -> None:
    with pytest.raises((am.UsageError, AttributeError)) as caught:
        old()
    assert new in str(caught.value)


def test_settings_by_name_are_those_of_the_config() -> None:
    assert am.JobSettings.__annotations__.keys() == {
        field.name for field in dataclasses.fields(am.JobConfig)
    }


def test_a_setting_that_there_is_not_is_refused_by_its_name() -> None:
    with pytest.raises(am.InvalidArgumentError, match=r"^restrat: .* Is restart meant"):
        Env().configure(restrat=None)
    with pytest.raises(am.InvalidArgumentError, match=r"^parallelism: "):
        Env().configure(parallelism=4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"checkpoints": 10},
        {"restart": 3},
        {"restart": am.restart.FixedDelayRestart},
        {"state_backend": None},
        {"deployment": 4},
        {"cancel_timeout": None},
    ],
)
def test_a_setting_of_another_type_is_refused(wrong: Any) -> None:
    [name] = wrong
    with pytest.raises(am.WrongTypeError, match=f"^{name}: "):
        am.JobConfig(**wrong)
    with pytest.raises(am.WrongTypeError, match=f"^{name}: "):
        Env().configure(**wrong)


async def test_a_job_has_the_config_that_it_is_given_and_then_settings_by_name() -> (
    None
):
    class Place:
        parent_apart = False

        def __init__(self) -> None:
            self.configs: list[am.JobConfig] = []

        def deploy(self, graph: Any, config: am.JobConfig, **services: Any) -> Any:
            self.configs.append(config)
            return Embedded().deploy(graph, config, **services)

    place = Place()
    env = am.StreamExecutionEnvironment(config=am.JobConfig(seed=1, job_id="a"))
    for settings in ({}, {"seed": 2}, {"config": am.JobConfig(seed=3), "job_id": "b"}):
        env.from_collection([1]).sink_to(lambda number: None)
        given: dict[str, Any] = {**settings, "deployment": place}
        await env.execute(**given)
    assert [(one.seed, one.job_id) for one in place.configs] == [
        (1, "a"),
        (2, "a"),
        (3, "b"),
    ]
    # What runs a job is not sent to its workers.
    assert {one.deployment for one in place.configs} == {None}
    assert env.config == am.JobConfig(
        seed=1, job_id="a", state_backend=env.config.state_backend
    )


async def test_what_is_no_config_is_refused() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(lambda number: None)
    with pytest.raises(am.WrongTypeError, match=r"^config: "):
        await env.execute(config={"seed": 1})  # type: ignore[arg-type]
    with pytest.raises(am.WrongTypeError, match=r"^config: "):
        am.StreamExecutionEnvironment(config={"seed": 1})  # type: ignore[arg-type]
