"""Jobs that run as a service: what is asked of them. Checked, and never run."""

from __future__ import annotations

from typing import Any, assert_type

import aiomailbox as am
from tests.typing.idioms.streams import Order, Refund, is_refund, total


def saved() -> am.Inbox[Order]:
    return am.Inbox(size=100)


async def inboxes(env: am.StreamExecutionEnvironment, inbox: am.Inbox[Order]) -> None:
    assert_type(env.from_source(inbox, name="orders"), am.DataStream[Order])
    assert_type(env.from_source(saved()), am.DataStream[Order])
    await inbox.put(Order("ann", 3.0, 2, 1000))
    inbox.close()


async def questions(env: am.StreamExecutionEnvironment) -> None:
    asked = env.from_questions()
    assert_type(asked, am.DataStream[am.Question[Any]])
    answers = asked.map(lambda question: question.answer(2 * question.value))
    assert_type(answers, am.DataStream[am.Answer[Any]])
    worded = asked.map(lambda question: question.answer("yes"))
    assert_type(worded, am.DataStream[am.Answer[str]])
    answers.sink_to(am.Answers())
    async with env.start() as job:
        found: int = await job.ask(21, timeout=am.seconds(1))
        print(found)


async def subscriptions(stream: am.DataStream[Order], job: am.JobClient) -> None:
    published = stream.filter(is_refund).publish()
    assert_type(published, am.DataStream[Refund])
    reader = job.subscribe(published, size=16, on_full="wait")
    assert_type(reader, am.Subscription[Refund])
    async with reader as records:
        async for order in records:
            assert_type(order, Refund)


async def a_job(env: am.StreamExecutionEnvironment) -> None:
    env.enable_checkpointing(
        am.seconds(10),
        directory="s3://bucket/jobs",
        mode=am.CheckpointingMode.EXACTLY_ONCE,
        unaligned=True,
        retention=am.Retention.ON_CANCELLATION,
    ).configure(restart=am.restart.fixed_delay(attempts=3, delay=1))
    async with (
        env.start("orders", restore_from="latest", on_failure="log") as job,
        am.progress(job, total=10),
    ):
        assert_type(await job.trigger_checkpoint(), am.CompletedCheckpoint)
        saved = await job.trigger_savepoint("file:///tmp/saved")
        assert_type(saved, am.CompletedCheckpoint)
        assert_type(job.checkpoints(), list[am.CheckpointView])
        assert_type(job.restarts, int)
        assert_type(job.state, am.JobState)
        assert_type(job.await_tree(), str)
        assert_type(job.bottleneck(), am.Bottleneck | None)
        assert_type(job.watermarks(), dict[str, am.OperatorWatermark])
        seen = job.snapshot()
        assert_type(seen, am.JobSnapshot)
        assert_type(seen.operators, list[am.OperatorSummary])
        assert_type(seen.operator("map").num_records_in, int)
        assert_type(seen.failures, list[am.FailureSummary])
        stopped = await job.stop_with_savepoint("file:///tmp/saved", drain=False)
        assert_type(stopped, am.CompletedCheckpoint)
        result = await job.result()
        assert_type(result, am.JobResult)
        assert_type(result.stop_reason, str)
        await job.cancel()
    begun = await env.execute(
        "orders", deployment=am.Processes(4), restore_from=saved.place, progress=True
    )
    assert_type(begun, am.JobResult)


async def main() -> int:
    return 1


def programs() -> None:
    assert_type(am.run(main(), dashboard=8081), int)


def drawn(env: am.StreamExecutionEnvironment, stream: am.DataStream[Order]) -> None:
    assert_type(env.explain(), str)
    assert_type(env.explain(format="svg"), str)
    assert_type(stream.explain(), str)


def settings() -> am.StreamExecutionEnvironment:
    config = am.JobConfig(latency_interval=am.millis(1000), trace_calls=True)
    env = am.StreamExecutionEnvironment(2, max_parallelism=128, config=config)
    env.configure(state_backend=am.RocksDBStateBackend("state"))
    env.configure(deployment=am.Processes(2))
    assert_type(
        env.configure(buffer_timeout=am.millis(0)), am.StreamExecutionEnvironment
    )
    return env


async def paid(order: Order) -> str:
    return order.user


def paid_calls(stream: am.DataStream[Order]) -> None:
    limit = am.RateLimit(20_000, per=60, burst=100, budget=1_000_000)
    called = stream.map_async(
        paid,
        journal=True,
        id=lambda order: f"{order.user} {order.at}",
        limit=limit,
        on_error=am.dead_letter(am.OutputTag[am.DeadLetter]("unpaid")),
    )
    assert_type(called, am.DataStream[str])
    assert_type(stream.map(total, run_in="thread"), am.DataStream[float])
    assert_type(stream.checked(Order), am.DataStream[Order])


def patterns(keyed: am.KeyedStream[str, Order]) -> None:
    dear = (
        am.pattern("cheap", where=lambda order: order.price < 5)
        .next("dear", where=lambda order: order.price > 500)
        .within(am.minutes(5))
    )
    assert_type(dear, am.Pattern)
    matches = keyed.match(dear, partials_max=10)
    assert_type(matches, am.DataStream[am.Match])
    users = matches.map(lambda match: match.events["dear"].user)
    assert_type(users, am.DataStream[Any])
