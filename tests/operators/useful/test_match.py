"""Patterns: what is found is what somebody who sees all records at once would find."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.durations import event_time_ms as ms, seconds
from aiomailbox.errors import (
    InvalidArgumentError,
    TimestampError,
    UserFunctionError,
    WrongTypeError,
)
from aiomailbox.operators.core.user_code import dead_letter
from aiomailbox.operators.useful.patterns import Match, MatchOperator, Pattern, pattern
from aiomailbox.records.events import OutputTag
from aiomailbox.testing import OneInputHarness

Row = tuple[int, str]


class Is:
    """Says whether a record is about one letter."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    def __call__(self, record: Row) -> bool:
        return record[1] == self.letter


def same_key(record: Any) -> str:
    return "k"


def follow(rows: list[Row], first: int, looked_for: Pattern) -> tuple[int, ...] | None:
    """Return the places of the match that begins at a place, if there is one."""
    places: list[int] = []
    for place in range(first, len(rows)):
        step = looked_for.steps[len(places)]
        within = looked_for.within_ms
        if within is not None and rows[place][0] - rows[first][0] >= within:
            return None
        if step.where is None or step.where(rows[place]):
            places.append(place)
            if len(places) == len(looked_for.steps):
                return tuple(places)
        elif step.is_strict or not places:
            return None
    return None


def naive(rows: list[Row], looked_for: Pattern) -> list[tuple[int, ...]]:
    found = [follow(rows, first, looked_for) for first in range(len(rows))]
    matches = sorted(
        (one for one in found if one is not None), key=lambda one: (one[-1], one[0])
    )
    if looked_for.skip == "none":
        return matches
    kept: list[tuple[int, ...]] = []
    for one in matches:
        if not kept or one[0] > kept[-1][-1]:
            kept.append(one)
    return kept


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    letters = st.sampled_from("abc")
    made = pattern("0", where=Is(draw(letters)))
    for number in range(1, draw(st.integers(1, 4))):
        where = draw(st.none() | letters.map(Is))
        add = made.next if draw(st.booleans()) else made.followed_by
        made = add(str(number), where=where)
    if draw(st.booleans()):
        made = made.within(seconds(draw(st.integers(1, 20)) / 1000))
    return made.skipping(draw(st.sampled_from(["past_last_event", "none"])))


class Fed:
    """Feeds an operator, and restarts it after each step if asked."""

    def __init__(self, looked_for: Pattern, *, restarts: bool, **options: Any) -> None:
        self.looked_for, self.restarts, self.options = looked_for, restarts, options
        self.matches: list[Match] = []
        self.harness = self.opened(None, None)

    def opened(self, state: Any, watermark: int | None) -> OneInputHarness:
        operator = MatchOperator(same_key, self.looked_for, **self.options)
        harness = OneInputHarness(operator, keyed=True)
        if state is not None:
            harness.restore(state)
        harness.open()
        if watermark is not None:
            harness.process_watermark(watermark)
        return harness

    def step(self, rows: list[Row], watermark: int) -> None:
        self.harness.process_run(rows, [stamp for stamp, _ in rows])
        if self.restarts:
            state = self.harness.snapshot()
            self.harness.close()
            self.harness = self.opened(state, None)
        self.harness.process_watermark(watermark)
        self.matches += self.harness.values
        self.harness.take_output()

    def state(self) -> tuple[Any, ...]:
        store = self.harness.context.keyed_state
        store.set_current_key("k")
        operator: Any = self.harness.operator
        return operator._partials.value(), operator._records.items()


@given(
    looked_for=patterns(),
    gaps=st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc")), max_size=25),
    cuts=st.integers(1, 8),
    restarts=st.booleans(),
    data=st.data(),
)
def test_matches_are_those_of_a_naive_matcher_in_any_order_and_over_restarts(
    looked_for: Pattern,
    gaps: list[tuple[int, str]],
    cuts: int,
    restarts: bool,
    data: st.DataObject,
) -> None:
    rows: list[Row] = []
    for gap, letter in gaps:
        # No two at one time: their order would be that of arrival.
        rows.append((rows[-1][0] + gap + 1 if rows else 0, letter))
    fed = Fed(looked_for, restarts=restarts)
    for start in range(0, len(rows), cuts):
        part = rows[start : start + cuts]
        fed.step(data.draw(st.permutations(part)), part[-1][0])
    expected = [[rows[place] for place in one] for one in naive(rows, looked_for)]
    assert [list(match.events.values()) for match in fed.matches] == expected
    for match in fed.matches:
        stamps = [stamp for stamp, _ in match.events.values()]
        assert (ms(match.start), ms(match.end)) == (stamps[0], stamps[-1])


def ab() -> Pattern:
    return pattern("a", where=Is("a")).followed_by("b", where=Is("b"))


def test_what_can_no_longer_be_completed_in_time_is_forgotten() -> None:
    fed = Fed(ab().within(seconds(0.010)), restarts=False)
    fed.step([(0, "a")], 5)
    assert fed.state()[0] != ()
    fed.step([], 10)
    assert fed.state() == ((), [])


def test_without_within_one_beginning_a_step_is_kept() -> None:
    fed = Fed(ab(), restarts=False)
    fed.step([(stamp, "a") for stamp in range(100)], 100)
    assert len(fed.state()[0]) == 1


def test_what_no_record_can_end_is_kept_alone_and_grows_without_being_copied() -> None:
    """Else each record would cost the square of the length of the match."""
    looked_for = pattern("a", where=Is("a")).times(1_000)
    fed = Fed(looked_for, restarts=False)
    fed.step([(stamp, "a") for stamp in range(1, 1_000)], 999)
    (partial,), waiting = fed.state()
    assert (partial.start, partial.step, waiting) == (1, 999, [])
    assert [len(part) for part in partial.events] == [512, 256, 128, 64, 32, 4, 2, 1]
    fed.step([(1_000, "a")], 1_000)
    (match,) = fed.matches
    assert match.events == {"a": [(stamp, "a") for stamp in range(1, 1_001)]}


@given(n=st.integers(2, 4), letters=st.text("ab", max_size=40), strict=st.booleans())
def test_of_repeated_steps_matches_are_those_of_a_naive_matcher(
    n: int, letters: str, strict: bool
) -> None:
    looked_for = pattern("a", where=Is("a")).times(n)
    looked_for = (looked_for.next if strict else looked_for.followed_by)("b").times(n)
    rows = list(enumerate(letters, 1))
    fed = Fed(looked_for, restarts=False)
    fed.step(rows, len(rows))
    found = [[*one.events["a"], *one.events["b"]] for one in fed.matches]
    assert found == [[rows[place] for place in one] for one in naive(rows, looked_for)]


def test_records_of_one_time_are_kept_without_being_copied_for_each() -> None:
    fed = Fed(ab(), restarts=False)
    fed.harness.process_run([(5, "c")] * 1_000, [5] * 1_000)
    ((stamp, kept),) = fed.state()[1]
    assert (stamp, [len(part) for part in kept]) == (5, [512, 256, 128, 64, 32, 8])


def test_beginnings_of_matches_are_bounded_and_the_earliest_is_forgotten() -> None:
    fed = Fed(ab().skipping("none"), restarts=False, partials_max=2)
    fed.step([(0, "a"), (1, "a"), (2, "a"), (3, "b")], 3)
    assert [ms(match.start) for match in fed.matches] == [1, 2]
    metrics = fed.harness.context.metrics.snapshot()
    assert metrics["partial_matches_dropped"] == 1


@pytest.mark.parametrize(
    ("skip", "starts"), [("past_last_event", [0]), ("none", [0, 2])]
)
def test_a_match_ends_those_that_have_begun_unless_none_is_skipped(
    skip: Any, starts: list[int]
) -> None:
    fed = Fed(ab().followed_by("c", where=Is("c")).skipping(skip), restarts=False)
    fed.step(list(enumerate("abacbc")), 5)
    assert [ms(match.start) for match in fed.matches] == starts


def test_late_records_are_dropped_and_counted() -> None:
    fed = Fed(ab(), restarts=False)
    fed.step([(1, "a")], 5)
    fed.step([(5, "b")], 9)
    assert fed.matches == []
    assert fed.harness.context.metrics.snapshot()["num_late_records_dropped"] == 1


def test_keys_do_not_see_each_other() -> None:
    operator = MatchOperator(lambda row: row[2], ab())
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([(0, "a", "x"), (1, "b", "y"), (2, "b", "x")], [0, 1, 2])
        harness.process_watermark(2)
        assert [(one.key, ms(one.start), ms(one.end)) for one in harness.values] == [
            ("x", 0, 2)
        ]


def test_wrong_patterns_are_refused_where_they_are_written() -> None:
    async def later(record: Any) -> bool:
        await asyncio.sleep(0)
        return True

    with pytest.raises(InvalidArgumentError, match="two steps are called 'a'"):
        pattern("a").next("a")
    with pytest.raises(InvalidArgumentError, match="name"):
        pattern("")
    with pytest.raises(WrongTypeError, match="where"):
        pattern("a", where=later)
    with pytest.raises(InvalidArgumentError, match="duration"):
        pattern("a").within(0)
    with pytest.raises(InvalidArgumentError, match="skip"):
        pattern("a").skipping("all")  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError, match="Pattern"):
        MatchOperator(same_key, "a")  # type: ignore[arg-type]


def test_a_record_without_event_time_is_refused() -> None:
    with (
        OneInputHarness(MatchOperator(same_key, ab()), keyed=True) as harness,
        pytest.raises(TimestampError, match="has no event time"),
    ):
        harness.process_element((0, "a"))


def broken_at_two(record: Row) -> bool:
    if record[0] == 2:
        raise ValueError("cannot say")
    return record[1] == "a"


def test_an_error_of_a_step_names_the_operator_the_line_and_the_record() -> None:
    operator = MatchOperator(same_key, pattern("a", where=broken_at_two))
    with OneInputHarness(operator, keyed=True, operator_name="fraud") as harness:
        harness.process_run([(2, "x")], [2])
        with pytest.raises(UserFunctionError, match=r"'fraud'.*cannot say") as caught:
            harness.process_watermark(2)
    assert __file__ in caught.value.location
    assert caught.value.__notes__ == ["the record: (2, 'x')"]


def test_a_record_that_a_step_fails_for_can_be_set_aside() -> None:
    failed = OutputTag("failed")
    looked_for = pattern("a", where=broken_at_two).followed_by("b", where=Is("b"))
    operator = MatchOperator(same_key, looked_for, on_error=dead_letter(failed))
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([(1, "a"), (2, "x"), (3, "b")], [1, 2, 3])
        harness.process_watermark(3)
        assert [match.events for match in harness.values] == [
            {"a": (1, "a"), "b": (3, "b")}
        ]
        (letter,) = harness.side_output(failed)
    assert (letter.value.record, letter.timestamp) == ((2, "x"), 2)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_repeated_step_gives_a_list(restarts: bool) -> None:
    looked_for = pattern("wrong", where=Is("w")).times(3).next("right", where=Is("r"))
    rows = [(1, "w"), (2, "x"), (3, "w"), (4, "w"), (5, "r"), (6, "w"), (7, "r")]
    operator = MatchOperator(same_key, looked_for)
    harness = OneInputHarness(operator, keyed=True)
    with harness:
        harness.process_run(rows[:4], [row[0] for row in rows[:4]])
        harness.process_watermark(3)
        state = harness.snapshot()
        if not restarts:
            harness.process_run(rows[4:], [row[0] for row in rows[4:]])
            harness.process_watermark(9)
    if restarts:
        harness = OneInputHarness(MatchOperator(same_key, looked_for), keyed=True)
        harness.restore(state)
        with harness:
            harness.process_run(rows[4:], [row[0] for row in rows[4:]])
            harness.process_watermark(9)
    (match,) = harness.values
    assert match.events == {
        "wrong": [(1, "w"), (3, "w"), (4, "w")],
        "right": (5, "r"),
    }


def test_a_step_is_repeated_once_and_more_than_once() -> None:
    for n in (0, 1):
        with pytest.raises(InvalidArgumentError, match="n:"):
            pattern("a").times(n)
    with pytest.raises(InvalidArgumentError, match="repeated already"):
        pattern("a").times(2).times(2)
    with pytest.raises(WrongTypeError, match="n:"):
        pattern("a").times("2")  # type: ignore[arg-type]


def test_a_condition_is_asked_only_where_a_match_has_come_to_its_step() -> None:
    asked: list[str] = []

    def is_second(record: Any) -> bool:
        asked.append(record)
        return bool(record == "b")

    looked_for = pattern("a", where=lambda record: record == "a").next(
        "b", where=is_second
    )
    with OneInputHarness(MatchOperator(same_key, looked_for), keyed=True) as harness:
        harness.process_run(["x", "a", "b", "y"], [1, 2, 3, 4])
        harness.process_watermark(9)
        assert asked == ["b"]
        assert len(harness.values) == 1


def test_a_condition_that_raises_for_a_record_leaves_what_has_begun() -> None:
    failed = OutputTag("failed")

    def is_large(record: Any) -> bool:
        return int(record[1:]) > 5

    looked_for = pattern("small", where=lambda record: record[0] == "s").next(
        "large", where=is_large
    )
    operator = MatchOperator(same_key, looked_for, on_error=dead_letter(failed))
    with OneInputHarness(operator, keyed=True) as harness:
        # The condition of the second step would fail for the first record.
        harness.process_run(["small", "?", "l9"], [1, 2, 3])
        harness.process_watermark(9)
        assert [match.events for match in harness.values] == [
            {"small": "small", "large": "l9"}
        ]
        letters = [letter.value.record for letter in harness.side_output(failed)]
        assert letters == ["?"]
