"""Flink 2.3.0's checkpoint machinery, step by step, through our classes.

Recorded from ``SingleCheckpointBarrierHandler``, restart strategies,
``CheckpointRequestDecider`` and ``CheckpointFailureManager``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from aiomailbox.barriers.handler import CheckpointBarrierHandler
from aiomailbox.barriers.machine import (
    Abort,
    CancelAlignmentTimer,
    ChannelInfo,
    Prioritize,
    ResumeChannel,
    SetAlignmentTimer,
    StartPersisting,
    StopPersisting,
    TakeSnapshot,
)
from aiomailbox.checkpoint.planner import (
    CheckpointRequest,
    Choice,
    FailureCounter,
    FailureReason,
    Refusal,
    RequestQueue,
    trigger_failure,
)
from aiomailbox.checkpoint.settings import CheckpointConfig
from aiomailbox.durations import seconds
from aiomailbox.policies import restart
from aiomailbox.policies.restart import RestartStrategy, RestartWait
from aiomailbox.records.events import (
    NO_ALIGNED_TIMEOUT,
    Alignment,
    CheckpointBarrier,
    SnapshotType,
)
from aiomailbox.testing import ManualClock
from tests.conformance.pipelines import Spec, recorded

SCENARIOS = recorded("machinery")
Log = list[list[Any]]

ABORTED = {
    "SUBSUMED": "CHECKPOINT_DECLINED_SUBSUMED",
    "CANCELLED": "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER",
    "END_OF_STREAM": "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM",
}
FAILED = {
    "CHECKPOINT_EXPIRED": FailureReason.EXPIRED,
    "CHECKPOINT_DECLINED": FailureReason.DECLINED,
    "CHECKPOINT_ASYNC_EXCEPTION": FailureReason.DECLINED,
    "CHECKPOINT_DECLINED_TASK_CLOSING": FailureReason.TASK_CLOSING,
    "FINALIZE_CHECKPOINT_FAILURE": FailureReason.STORAGE,
    "IO_EXCEPTION": trigger_failure(OSError("the disk is gone")),
    "TRIGGER_CHECKPOINT_FAILURE": trigger_failure(RuntimeError("no snapshot")),
    "CHECKPOINT_SUBSUMED": FailureReason.SUBSUMED,
    "CHECKPOINT_COORDINATOR_SUSPEND": FailureReason.SUSPENDED,
    "MINIMUM_TIME_BETWEEN_CHECKPOINTS": FailureReason.MIN_PAUSE,
    "NOT_ALL_REQUIRED_TASKS_RUNNING": FailureReason.NOT_RUNNING,
    "TOO_MANY_CHECKPOINT_REQUESTS": FailureReason.TOO_MANY_REQUESTS,
}


def of(kind: str) -> list[Any]:
    return [
        pytest.param(scenario, id=str(scenario["i"]))
        for scenario in SCENARIOS
        if scenario["kind"] == kind
    ]


class Handler:
    """Gives a barrier handler the recorded steps, and says what it does as Flink's."""

    def __init__(self, params: Spec) -> None:
        self.clock = ManualClock()
        self.offset = self.clock.now_ms() - 1_000_000
        self.handler = CheckpointBarrierHandler(
            params["channels"],
            self.clock,
            may_overtake=params["mode"] != "aligned",
            after_end=params["after_end"],
        )
        self.timer: tuple[int, int] | None = None

    def step(self, step: Spec) -> Log:
        what = step["op"]
        if what == "time":
            return self.pass_time(step["ms"])
        channel, handler = ChannelInfo(0, step["channel"]), self.handler
        if what.startswith("barrier"):
            return self.done(handler.on_barrier(channel, self.barrier(step)))
        if what.startswith("announce"):
            barrier, number = self.barrier(step), step["seq"]
            return self.done(handler.on_announcement(channel, barrier, number))
        if what == "cancel":
            return self.done(handler.on_cancel(channel, step["id"]))
        return self.done(handler.on_end_of_partition(channel))

    def pass_time(self, milliseconds: int) -> Log:
        self.clock.advance_to(self.clock.now_ms() + milliseconds)
        if self.timer is None or self.timer[0] > self.clock.now_ms():
            return []
        (_, checkpoint_id), self.timer = self.timer, None
        return self.done(self.handler.on_timeout(checkpoint_id))

    def barrier(self, step: Spec) -> CheckpointBarrier:
        what, is_converted = step["op"], step.get("converted", False)
        kind = SnapshotType.CHECKPOINT
        if what.endswith("savepoint"):
            kind = SnapshotType.SAVEPOINT_CANONICAL
        overtakes = ":unaligned" in what or is_converted
        times_out = ":timeout" in what and not is_converted
        return CheckpointBarrier(
            step["id"],
            step["timestamp"] + self.offset,
            Alignment.UNALIGNED if overtakes else Alignment.ALIGNED,
            kind,
            100 if times_out else NO_ALIGNED_TIMEOUT,
        )

    def done(self, actions: Iterable[Any]) -> Log:
        log: Log = []
        for action in actions:
            match action:
                case TakeSnapshot(barrier):
                    log.append(
                        ["trigger", barrier.checkpoint_id, barrier.alignment.name]
                    )
                case Abort(checkpoint_id, reason):
                    name = ABORTED.get(reason.name, reason.name)
                    log.append(["abort", checkpoint_id, name])
                case ResumeChannel(channel):
                    log.append(["resume", channel.channel_index])
                case Prioritize(channel, number):
                    log.append(["convert", channel.channel_index, number])
                case StartPersisting(barrier):
                    log.append(["start", barrier.checkpoint_id])
                case StopPersisting(checkpoint_id):
                    log.append(["stop", checkpoint_id])
                case SetAlignmentTimer(checkpoint_id, delay_ms):
                    self.timer = (self.clock.now_ms() + delay_ms, checkpoint_id)
                case CancelAlignmentTimer():
                    self.timer = None
        return log


def only(log: Log, *kinds: str) -> Log:
    return [entry for entry in log if entry[0] in kinds]


@pytest.mark.parametrize("scenario", of("barrier_handler"))
def test_barriers_are_handled_as_by_flink(scenario: Spec) -> None:
    replay = Handler(scenario["params"])
    for number, step in enumerate(scenario["steps"]):
        log, expected = replay.step(step), step["log"]
        where = f"step {number} {step}: ours {log}"
        # Channels are resumed, and their buffers overtaken, in no order.
        for kind in ("convert", "resume"):
            assert sorted(only(log, kind)) == sorted(only(expected, kind)), where
        ends = "trigger", "abort"
        assert only(log, *ends) == only(expected, *ends), where
        # Flink says it once for each channel.
        started = {entry[1] for entry in only(expected, "start")}
        assert {entry[1] for entry in only(log, "start")} == started, where
        handler = replay.handler
        blocked = sorted(one.channel_index for one in handler.blocked_channels)
        assert blocked == step["blocked"], where
        assert handler.latest_checkpoint_id == step["latest"], where


def strategy_of(params: Spec) -> RestartStrategy:
    match params["kind"]:
        case "fixed":
            return restart.fixed_delay(params["attempts"], params["delay"] / 1000)
        case "rate":
            return restart.failure_rate(
                params["failures"], params["per"] / 1000, params["delay"] / 1000
            )
        case "exponential":
            return restart.exponential_delay(
                params["initial"] / 1000,
                params["maximum"] / 1000,
                params["multiplier"],
                0.0,
                params["reset"] / 1000,
                params["attempts"],
            )
    raise ValueError(params)


@pytest.mark.parametrize("scenario", of("restart"))
def test_restarts_are_delayed_as_by_flink(scenario: Spec) -> None:
    wait = RestartWait(strategy_of(scenario["params"]).begin(Random(0)))
    merges = scenario["params"]["within"]
    for number, step in enumerate(scenario["steps"]):
        now, where = step["now"], f"step {number} of {scenario}"
        is_merged = merges and wait.left_ms(now) > 0
        assert is_merged is not step.get("new", True) or not merges, where
        can_restart = is_merged or wait.on_failure(now)
        assert can_restart == step["can"], where
        if can_restart:
            # Flink's delays are doubles, ours are whole milliseconds.
            assert wait.left_ms(now) == pytest.approx(step["delay"], abs=1), where


@pytest.mark.parametrize("scenario", of("request_decider"))
def test_requests_are_chosen_as_by_flink(scenario: Spec) -> None:
    params = scenario["params"]
    settings = CheckpointConfig(
        interval=seconds(60),
        max_concurrent=params["max"],
        min_pause=seconds(params["pause"] / 1000),
        unaligned=params["unaligned"],
    )
    queue, now_ms = RequestQueue(settings, params["queue"]), 1_000_000
    for number, step in enumerate(scenario["steps"]):
        now_ms += step["ms"]
        failed: Log = []
        retries: list[int | None] = []
        chosen, where = None, f"step {number}: {step}"
        refused = queue.add(request_of(step["request"])) if "request" in step else None
        if refused is not None:
            failed.append([refused.request.number, "TOO_MANY_CHECKPOINT_REQUESTS"])
        is_full = refused is not None and (
            refused.request.number == step["request"]["no"]
        )
        # Flink looks for no other request when people's own fill the queue.
        if is_full and step["chosen"] is None and not step["reschedule"]:
            assert failed == step["failed"], where
            continue
        last = step["last"]
        choice = queue.choose(
            now_ms,
            is_starting=step["triggering"],
            pending=step["pending"],
            cleaning=step["cleaning"],
            last_completed_ms=None if last is None else now_ms - last,
        )
        match choice:
            case Choice(request):
                chosen = request.number
            case Refusal(request, _, retry_after_ms):
                failed.append([request.number, "MINIMUM_TIME_BETWEEN_CHECKPOINTS"])
                retries.append(retry_after_ms)
        assert chosen == step["chosen"], where
        assert failed == step["failed"], where
        assert retries == step["reschedule"], where
        assert len(queue) == step["queued"], where


def request_of(asked: Spec) -> CheckpointRequest:
    kind = SnapshotType.CHECKPOINT
    if asked["savepoint"]:
        kind = SnapshotType.SAVEPOINT_CANONICAL
    return CheckpointRequest(asked["no"], kind, asked["periodic"], None)


@pytest.mark.parametrize("scenario", of("failure_manager"))
def test_failures_are_counted_as_by_flink(scenario: Spec) -> None:
    counter = FailureCounter(scenario["params"]["tolerable"])
    for number, step in enumerate(scenario["steps"]):
        if "success" in step:
            counter.on_success(step["success"])
            continue
        fails = counter.on_failure(step["id"], FAILED[step["failure"]])
        assert fails == bool(step["fails"]), f"step {number} of {scenario}"


def test_all_scenarios_are_replayed() -> None:
    assert Counter(scenario["kind"] for scenario in SCENARIOS) == {
        "barrier_handler": 150,
        "restart": 60,
        "request_decider": 50,
        "failure_manager": 40,
    }
