from __future__ import annotations

import asyncio

import pytest

import aiomailbox as am
from aiomailbox.errors import (
    InvalidArgumentError,
    RecordsRefusedError,
    SinkError,
    UserFunctionError,
    WrongTypeError,
)
from aiomailbox.operators.core.user_code import dead_letter, skip
from aiomailbox.operators.sinks.sink import SinkOperator
from aiomailbox.records.events import OutputTag
from aiomailbox.state.operator_state import OperatorStateSnapshot, RedistributionMode
from aiomailbox.testing import OneInputHarness


class ListSink:
    """Its writer buffers; what is flushed is prepared, and so committed by hand."""

    def __init__(self, fail_with: Exception | None = None) -> None:
        self.calls = []
        self.fail_with = fail_with

    def create_writer(self, context):
        return ListWriter(self)

    def create_committer(self, context):
        return None


class ListWriter:
    def __init__(self, sink):
        self.sink = sink
        self.buffer = []
        self.prepared = []

    def write_run(self, run):
        if self.sink.fail_with is not None:
            raise self.sink.fail_with
        self.buffer += run.values

    def flush(self, *, end_of_input):
        self.sink.calls.append(("flush", end_of_input))
        self.prepared += self.buffer
        self.buffer = []

    def prepare_commit(self):
        prepared, self.prepared = self.prepared, []
        return prepared

    def snapshot(self):
        return list(self.buffer)

    def restore(self, state):
        self.buffer = list(state)

    def close(self):
        self.sink.calls.append("close")


class AsyncWriter(ListWriter):
    async def write_run(self, run):
        ListWriter.write_run(self, run)

    async def flush(self, *, end_of_input):
        ListWriter.flush(self, end_of_input=end_of_input)

    async def close(self):
        ListWriter.close(self)


class AsyncSink(ListSink):
    def create_writer(self, context):
        return AsyncWriter(self)


def committed(harness):
    return harness.context.prepared


def test_what_was_written_is_handed_over_before_the_barrier():
    with OneInputHarness(SinkOperator(ListSink())) as harness:
        harness.process_run([1, 2])
        assert committed(harness) == []
        harness.prepare_snapshot()
        assert committed(harness) == [1, 2]


def test_the_rest_is_handed_over_at_the_end_of_input_once():
    sink = ListSink()
    with OneInputHarness(SinkOperator(sink)) as harness:
        harness.process_run([1])
        harness.finish()
        harness.prepare_snapshot()
        harness.finish()
        assert committed(harness) == [1]
        assert sink.calls == [("flush", True)]


def test_a_writer_that_had_ended_does_not_hand_over_again_after_a_restart():
    sink = ListSink()
    with OneInputHarness(SinkOperator(sink)) as harness:
        harness.finish()
        state = harness.snapshot()
    again = OneInputHarness(SinkOperator(sink))
    again.restore(state)
    sink.calls.clear()
    with again:
        again.prepare_snapshot()
        again.finish()
    assert sink.calls == ["close"]


@pytest.mark.parametrize("ended", [[], [True, False], [False, False], [True, True]])
def test_a_writer_goes_on_unless_all_that_it_stands_for_had_ended(ended):
    """One of fewer subtasks than before has the rest of several; new ones of nobody."""
    own = OperatorStateSnapshot().with_list("ended", ended, RedistributionMode.MERGE)
    sink = ListSink()
    operator = SinkOperator(sink)
    operator.restore_own(own)
    with OneInputHarness(operator) as harness:
        harness.process_run([1])
        harness.finish()
        assert committed(harness) == ([] if ended == [True, True] else [1])


@pytest.mark.parametrize("cut", range(4))
def test_a_cut_anywhere_changes_nothing(cut):
    records = [1, 2, 3]
    before = OneInputHarness(SinkOperator(ListSink()))
    before.open()
    before.process_run(records[:cut])
    state = before.snapshot()
    after = OneInputHarness(SinkOperator(ListSink()))
    after.restore(state)
    after.open()
    after.process_run(records[cut:])
    after.finish()
    assert committed(before) + committed(after) == records


async def test_a_writer_may_be_async():
    sink = AsyncSink()
    async with OneInputHarness(SinkOperator(sink)) as harness:
        await harness.run(harness.process_run, [1, 2])
        await harness.run(harness.prepare_snapshot)
        assert committed(harness) == [1, 2]
    assert sink.calls == [("flush", False), "close"]


@pytest.mark.parametrize("sink_type", [ListSink, AsyncSink])
async def test_a_failing_writer_fails_with_the_operators_name(sink_type):
    sink = sink_type(fail_with=ValueError("disk"))
    async with OneInputHarness(SinkOperator(sink)) as harness:
        with pytest.raises(UserFunctionError, match="disk"):
            await harness.run(harness.process_run, [1])


def test_an_error_of_a_sink_stays_what_it_is():
    sink = ListSink(SinkError("full"))
    with (
        OneInputHarness(SinkOperator(sink)) as harness,
        pytest.raises(SinkError, match="full"),
    ):
        harness.process_run([1])


def test_a_sink_that_was_never_opened_closes_quietly():
    sink = ListSink()
    OneInputHarness(SinkOperator(sink)).close()
    assert sink.calls == []


@pytest.mark.parametrize("hook", ["write_run", "flush", "prepare_commit", "snapshot"])
async def test_an_error_of_a_writers_hook_names_operator_uid_line_and_hook(hook):
    class Broken(ListSink):
        def create_writer(self, context):
            writer = ListWriter(self)
            setattr(writer, hook, self.refuse)
            return writer

        def refuse(self, *args, **options):
            raise OSError("gone")

    operator = SinkOperator(Broken())
    async with OneInputHarness(operator, uid="p-1") as harness:
        with pytest.raises(UserFunctionError) as caught:
            harness.process_run([1])
            harness.prepare_snapshot()
            harness.snapshot()
    error = caught.value
    assert (error.operator, error.uid) == ("operator", "p-1")
    assert error.location.startswith(f"{__file__}:")
    assert error.__notes__ == [f"in {hook}() of operator 'operator' (uid 'p-1')"]


def test_a_sink_that_makes_no_writer_is_named():
    class Broken(ListSink):
        def create_writer(self, context):
            raise OSError("gone")

    harness = OneInputHarness(SinkOperator(Broken()), uid="p-1")
    with pytest.raises(UserFunctionError, match="uid 'p-1'") as caught:
        harness.open()
    assert "in create_writer()" in caught.value.__notes__[0]


REFUSED = OutputTag("refused")


class Picky(ListSink):
    """Takes no odd numbers, and says of each run at once which ones."""

    def create_writer(self, context):
        writer = ListWriter(self)

        def write_run(run):
            errors = {k: ValueError(v) for k, v in enumerate(run.values) if v % 2}
            writer.buffer += [value for value in run.values if not value % 2]
            if errors:
                raise RecordsRefusedError(errors, len(run.values))

        writer.write_run = write_run
        return writer


class PickySoon(ListSink):
    """Stops at each odd number, at once; is never given nothing."""

    def create_writer(self, context):
        writer = ListWriter(self)

        def write_run(run):
            assert len(run)
            for index, value in enumerate(run.values):
                if value % 2:
                    raise RecordsRefusedError({index: ValueError(value)}, index + 1)
                writer.buffer.append(value)

        writer.write_run = write_run
        return writer


class PickyLater(ListSink):
    """Stops at each odd number, after a while."""

    def create_writer(self, context):
        writer = ListWriter(self)

        async def write_run(run):
            assert len(run)
            await asyncio.sleep(1)
            for index, value in enumerate(run.values):
                if value % 2:
                    raise RecordsRefusedError({index: ValueError(value)}, index + 1)
                writer.buffer.append(value)

        writer.write_run = write_run
        return writer


@pytest.mark.parametrize("sink_type", [Picky, PickySoon, PickyLater])
async def test_refused_records_go_where_on_error_says_and_the_others_are_written(
    sink_type,
):
    numbers = [1, 2, 3, 4, 6, 7]
    operator = SinkOperator(sink_type(), on_error=dead_letter(REFUSED))
    async with OneInputHarness(operator, uid="p-1") as harness:
        await harness.run(harness.process_run, numbers, [10 * n for n in numbers])
        await harness.run(harness.prepare_snapshot)
        assert committed(harness) == [2, 4, 6]
        letters = harness.side_output(REFUSED)
        assert [letter.value.record for letter in letters] == [1, 3, 7]
        assert [letter.timestamp for letter in letters] == [10, 30, 70]
        assert {letter.value.uid for letter in letters} == {"p-1"}


@pytest.mark.parametrize("sink_type", [Picky, PickySoon, PickyLater])
async def test_refused_records_can_be_skipped(sink_type):
    operator = SinkOperator(sink_type(), on_error=skip)
    async with OneInputHarness(operator) as harness:
        await harness.run(harness.process_run, list(range(3000)))
        await harness.run(harness.prepare_snapshot)
        assert committed(harness) == list(range(0, 3000, 2))
        assert harness.context.metrics.counter("skipped").value == 1500


@pytest.mark.parametrize("sink_type", [Picky, PickySoon, PickyLater])
async def test_a_refused_record_fails_the_job_by_default(sink_type):
    async with OneInputHarness(SinkOperator(sink_type())) as harness:
        with pytest.raises(UserFunctionError, match="ValueError: 3") as caught:
            await harness.run(harness.process_run, [2, 3, 5])
    assert "the record: 3" in caught.value.__notes__


def test_an_error_that_is_of_no_record_fails_whatever_on_error_says():
    sink = ListSink(fail_with=OSError("gone"))
    with (
        OneInputHarness(SinkOperator(sink, on_error=skip)) as harness,
        pytest.raises(UserFunctionError, match="gone"),
    ):
        harness.process_run([1])


@pytest.mark.parametrize(("errors", "seen"), [({}, 1), ({1: ValueError()}, 1)])
def test_a_refusal_names_records_that_were_seen(errors, seen):
    with pytest.raises(InvalidArgumentError, match="errors"):
        RecordsRefusedError(errors, seen)


def test_an_on_error_that_is_none_is_refused():
    with pytest.raises(WrongTypeError, match="on_error"):
        SinkOperator(ListSink(), on_error="skip")


class Server(ListSink):
    """Its writer makes a call for each run, which takes five milliseconds."""

    has_fixed_cost = True

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def create_writer(self, context):
        return Caller(self)


class Caller(ListWriter):
    async def write_run(self, run):
        await asyncio.sleep(0.005)
        self.sink.lengths.append(len(run))


async def test_a_sink_whose_runs_have_a_fixed_cost_gets_longer_ones():
    """Shorter ones would save nothing: with one record each it is a call per record."""
    server = Server()
    env = am.StreamExecutionEnvironment()
    env.from_collection(range(10_000)).rebalance().sink_to(server)
    await env.execute()
    assert sum(server.lengths) == 10_000
    assert max(server.lengths) >= 512


@pytest.mark.parametrize(
    "sink", [am.SqlSink("shop.db", "t"), am.RedisSink("redis://host", key=str)]
)
def test_the_sinks_of_servers_say_that_a_run_has_a_fixed_cost(sink):
    assert SinkOperator(sink).has_fixed_cost
