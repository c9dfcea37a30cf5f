"""Random pipelines over random data: columns, rows, and a plain reference are equal."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings, strategies as st

import aiomailbox as am

FIELDS = ("key", "part", "n", "x", "money", "text")
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("part", pa.int32()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("money", pa.decimal128(12, 2)),
        ("text", pa.string()),
        ("at", pa.timestamp("ms", "UTC")),
    ]
)
JITTER_MS = 40
# Of jitter up to 100, and how late it makes a record.
TOO_LATE, TOO_LATE_MS = 90, 1000
SIZE_MS, SLIDE_MS, GAP_MS, NEAR_MS = 25, 10, 6, 15
LARGE = 2**63 - 1

some_keys = st.one_of(
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["c", "d", "e"]),
    # Keys that come once; what Arrow cannot hold (surrogates) cannot be made.
    st.text(st.characters(codec="utf-8"), max_size=3),
)
tame_rows = st.fixed_dictionaries(
    {
        "key": some_keys,
        "part": st.integers(-1, 1),
        "n": st.one_of(st.none(), st.integers(-9, 9)),
        "x": st.one_of(st.none(), st.floats(0.1, 9.9)),
        "money": st.one_of(st.none(), st.decimals(-99, 99, places=2)),
        "text": st.sampled_from([None, "", "a", "ä"]),
    }
)
wild_rows = st.fixed_dictionaries(
    {
        "key": some_keys,
        "part": st.sampled_from([0, 1, -(2**31)]),
        "n": st.sampled_from([None, 0, -1, 2**53 + 1, LARGE, -LARGE - 1]),
        "x": st.sampled_from([None, 0.0, -0.0, math.nan, math.inf, -math.inf, 1e308]),
        "money": st.sampled_from([None, Decimal("0.10"), Decimal("-9999999.99")]),
        "text": st.sampled_from([None, "", "\uffff", "\U0001f600"]),
    }
)


class Step(NamedTuple):
    """A verb without keys: as it is written, and done to one plain record."""

    apply: Any
    plain: Any


def _plus(record: dict[str, Any]) -> dict[str, Any]:
    n = record["n"]
    return {**record, "m": None if n is None else n // 2 if n >= 0 else -(-n // 2)}


def _quotient(record: dict[str, Any]) -> dict[str, Any] | None:
    n, part = record["n"], record["part"]
    if n is None:
        return {**record, "m": None}
    if not part or (n == -LARGE - 1 and part == -1):
        return None
    return {**record, "m": abs(n) // abs(part) * (1 if (n < 0) == (part < 0) else -1)}


async def _later(batch: Any) -> Any:
    await asyncio.sleep(0)
    return batch


async def _echo(record: Any) -> Any:
    await asyncio.sleep(0)
    return record.n


STEPS = {
    "filter": Step(
        lambda s: s.filter(pc.field("part") >= 0),
        lambda r: r if r["part"] >= 0 else None,
    ),
    "null": Step(
        lambda s: s.filter(pc.field("x") > 1),
        lambda r: r if r["x"] is not None and r["x"] > 1 else None,
    ),
    # Whole numbers divided are whole, cut towards zero.
    "half": Step(lambda s: s.with_columns(m=pc.field("n") / 2), _plus),
    "rename": Step(
        lambda s: s.rename({"money": "cost"}).rename({"cost": "money"}), dict
    ),
    # What cannot be divided is left out.
    "quotient": Step(
        lambda s: s.with_columns(m=pc.field("n") / pc.field("part"), on_error=am.skip),
        _quotient,
    ),
    "batches": Step(lambda s: s.map_batches(lambda batch: batch), dict),
    "polars": Step(lambda s: s.map_batches(lambda frame: frame, form="polars"), dict),
    "awaited": Step(lambda s: s.map_batches(_later), dict),
    "rebalance": Step(lambda s: s.rebalance(), dict),
    "rescale": Step(lambda s: s.rescale(), dict),
    "sample": Step(lambda s: s.sample(1.0), dict),
    "select": Step(lambda s: s.select("at", *FIELDS), dict),
    "drop": Step(lambda s: s.with_columns(m=pc.field("x")).drop("m"), dict),
    "union": Step(lambda s: s.union(s.filter(pc.field("part") > 9)), dict),
    "call": Step(
        lambda s: s.map_async(_echo, into="echo", columns=["n"]).drop("echo"), dict
    ),
}
AGGREGATES: dict[str, Any] = {
    "n": am.count,
    "total": lambda: am.sum_("x"),
    "whole": lambda: am.sum_("n"),
    "average": lambda: am.mean("x"),
    "least": lambda: am.min_("x"),
    "most": lambda: am.max_("n"),
    "money": lambda: am.sum_("money"),
    "first": lambda: am.min_("text"),
    "latest": lambda: am.max_("at"),
    "middle": lambda: am.mean("n"),
    "some": lambda: am.count(where=pc.field("x") > 1),
    "part": lambda: am.sum_("n", where=pc.field("part") >= 0),
    "cheapest": lambda: am.min_("money", where=pc.field("text").is_valid()),
}
KEYS: list[tuple[str, ...]] = [("key",), ("part",), ("key", "part"), ("part", "key")]
WINDOWS: dict[str, Any] = {
    "tumbling": am.TumblingEventTimeWindows.of(am.millis(SIZE_MS)),
    "sliding": am.SlidingEventTimeWindows.of(am.millis(SIZE_MS), am.millis(SLIDE_MS)),
    "sessions": am.EventTimeSessionWindows.with_gap(am.millis(GAP_MS)),
}
JOINS = ("joined", "joined sliding", "near")
LATE = am.OutputTag[Any]("late")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
END_MS = 2**62

programs = st.fixed_dictionaries(
    {
        "steps": st.lists(st.sampled_from(sorted(STEPS)), max_size=2),
        "keys": st.sampled_from(KEYS),
        "end": st.sampled_from(
            [
                *("tumbling", "sliding", "sessions", "all tumbling", "all sliding"),
                *("all sessions", "rolling", "distinct", "records"),
                *("joined by function", "near by function", *JOINS),
            ]
        ),
        "aggregates": st.lists(
            st.sampled_from(sorted(AGGREGATES)), min_size=1, max_size=4, unique=True
        ),
        "lateness": st.sampled_from([0, 0, 12]),
        # One aggregate with its key, instead of several.
        "paired": st.sampled_from([False, False, True]),
    }
)


def timed(
    records: list[dict[str, Any]], jitter: list[int], first: int
) -> list[dict[str, Any]]:
    """Give records times before and after 1970, tied and late.

    Some after the first batch are so late that it is all the same where runs end.
    """
    return [
        {
            **record,
            "at": (-60 if late < TOO_LATE or place < first else -TOO_LATE_MS)
            + 4 * place
            - late % JITTER_MS,
        }
        for place, (record, late) in enumerate(zip(records, jitter, strict=False))
    ]


def program(stream: Any, what: dict[str, Any]) -> tuple[Any, Any]:
    """Return the results, and what came too late for them or None."""
    for name in what["steps"]:
        stream = STEPS[name].apply(stream)
    end, keys = what["end"], what["keys"]
    both: Any = am.aggregates(**{n: AGGREGATES[n]() for n in what["aggregates"]})
    if is_paired(what):
        both = AGGREGATES[what["aggregates"][0]]()
    with_key = {"include_key": True} if is_paired(what) else {}
    if end == "rolling":
        return stream.key_by(*keys).aggregate(both, **with_key), None
    if end == "distinct":
        return stream.key_by(*keys).deduplicate(), None
    if end == "records":
        return stream, None
    if end.startswith(JOINS):
        left, right = (
            stream.filter(pc.field("part") >= 0),
            stream.filter(pc.field("part") <= 0),
        )
        if end.startswith("joined"):
            join = left.join(right).where("key").equal_to("key")
            joined: Any = join.window(
                WINDOWS["sliding" if "sliding" in end else "tumbling"]
            )
            joined = joined.allowed_lateness(am.millis(what["lateness"]))
            by_function = joined.apply
        else:
            near = left.key_by("key").interval_join(right.key_by("key"))
            joined = near.between(am.millis(-NEAR_MS), am.millis(NEAR_MS))
            by_function = joined.process
        if end not in JOINS:
            return by_function(_pair), None
        parts = pc.field("left.part") - pc.field("right.part")
        names = {"n2": "right.n", "text2": "right.text", "parts": parts}
        return joined.select("key", "left.n", "left.text", **names), None
    kind = end.removeprefix("all ")
    windowed = (
        stream.key_by(*keys).window(WINDOWS[kind])
        if kind == end
        else stream.window_all(WINDOWS[kind])
    )
    windowed = windowed.allowed_lateness(am.millis(what["lateness"]))
    windowed = windowed.side_output_late_data(LATE)
    results = windowed.aggregate(both, **with_key)
    return results, results.get_side_output(LATE)


def is_paired(what: dict[str, Any]) -> bool:
    """Say whether results are pairs of a key and one aggregate's result."""
    return what["paired"] and what["end"] in {"rolling", *WINDOWS}


def _pair(left: Any, right: Any) -> tuple[Any, ...]:
    return left.key, left.n, left.text, right.n, right.text, left.part - right.part


def as_text(value: Any) -> str:
    """Return a record as text, which tells zeros, NaN and types apart."""
    return repr(value._asdict() if hasattr(value, "_asdict") else value)


async def run(source: Any, what: dict[str, Any], *, as_rows: bool) -> list[list[Any]]:
    """Return the results, and what came too late."""
    env = am.StreamExecutionEnvironment(parallelism=1)
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(
        am.millis(JITTER_MS)
    ).with_timestamp_assigner("at")
    stream = env.from_arrow(source, strategy)
    if as_rows:
        stream = stream.map(lambda record: record)
    found: list[list[Any]] = [[], []]
    results, late = program(stream, what)
    results.sink_to(found[0].append)
    if late is not None:
        late.sink_to(found[1].append)
    try:
        await env.execute()
    except am.JobFailedError as error:
        return [[type(error.__cause__).__name__], []]
    return found


async def counted(source: Any, what: dict[str, Any]) -> int:
    env = am.StreamExecutionEnvironment(parallelism=1)
    stream, _ = program(env.from_arrow(source), what)
    return int(await stream.count())


class Reference:
    """What windows give, record by record, as one would do it by hand."""

    def __init__(self, what: dict[str, Any]) -> None:
        self.what = what
        self.kind = what["end"].removeprefix("all ")
        # A window's key, start, end, records, and whether it has fired.
        self.windows: list[list[Any]] = []
        self.watermark = -END_MS
        self.found: list[Any] = []
        self.late: list[Any] = []

    def add(self, row: dict[str, Any]) -> None:
        key = tuple(row[name] for name in self.what["keys"])
        if self.what["end"] != self.kind:
            key = ()
        taken = False
        for start, end in self._stretches(row["at"]):
            mine = [w for w in self.windows if w[0] == key and self._is(w, start, end)]
            start = min([start, *(w[1] for w in mine)])
            end = max([end, *(w[2] for w in mine)])
            if end - 1 + self.what["lateness"] <= self.watermark:
                continue
            taken = True
            # What begins first is merged into.
            mine.sort(key=lambda window: window[1])
            window = mine[0] if mine else [key, start, end, [], False]
            for other in mine[1:]:
                window[3] += other[3]
            self.windows = [w for w in self.windows if w not in mine[1:]]
            if not mine:
                self.windows.append(window)
            window[1:3] = start, end
            window[3].append(row)
            window[4] = end - 1 <= self.watermark
            if window[4]:
                self._emit(window)
        if not taken:
            self.late.append(row)

    def _is(self, window: list[Any], start: int, end: int) -> bool:
        if self.kind == "sessions":
            return bool(window[1] <= end and start <= window[2])
        return bool(window[1] == start)

    def _stretches(self, at: int) -> list[tuple[int, int]]:
        if self.kind == "sessions":
            return [(at, at + GAP_MS)]
        slide = SIZE_MS if self.kind == "tumbling" else SLIDE_MS
        last = at - at % slide
        return [(s, s + SIZE_MS) for s in range(last, at - SIZE_MS, -slide)]

    def advance(self, watermark: int) -> None:
        self.watermark = max(self.watermark, watermark)
        for window in sorted(self.windows, key=lambda window: window[2]):
            if not window[4] and window[2] - 1 <= self.watermark:
                window[4] = True
                self._emit(window)
        kept = self.what["lateness"] - 1
        self.windows = [w for w in self.windows if w[2] + kept > self.watermark]

    def _emit(self, window: list[Any]) -> None:
        key, start, end, rows, _ = window
        bounds = tuple(EPOCH + dt.timedelta(milliseconds=ms) for ms in (start, end))
        self.found.append((key, *bounds, folded(rows, self.what["aggregates"])))


def reference(
    batches: list[list[dict[str, Any]]], what: dict[str, Any]
) -> tuple[list[Any], list[Any]]:
    """Compute by hand what comes out, and what comes too late."""
    windows, highest, rows = Reference(what), -END_MS, []
    for batch in batches:
        for row in batch:
            made: dict[str, Any] | None = row
            for name in what["steps"]:
                made = None if made is None else STEPS[name].plain(made)
            if made is not None:
                rows.append(made)
                if what["end"].removeprefix("all ") in WINDOWS:
                    windows.add(made)
        highest = max([highest, *(row["at"] for row in batch)])
        windows.advance(highest - JITTER_MS - 1)
    windows.advance(END_MS)
    end, keys, names = what["end"], what["keys"], what["aggregates"]
    if end.startswith(JOINS):
        return [_plain_pair(*pair) for pair in pairs(rows, end)], []
    if end == "records":
        return rows, []
    groups: dict[Any, list[dict[str, Any]]] = {}
    found: list[Any] = []
    for row in rows:
        group = groups.setdefault(tuple(row[field] for field in keys), [])
        group.append(row)
        if end == "distinct" and len(group) == 1:
            found.append(row)
        elif end == "rolling":
            key = tuple(row[field] for field in keys)
            made = folded(group, names)
            found.append((key, made[names[0]]) if is_paired(what) else made)
    if is_paired(what) and end != "rolling":
        found = [(key, made[names[0]]) for key, *_, made in windows.found]
    return found or windows.found, windows.late


def pairs(rows: list[dict[str, Any]], end: str) -> list[tuple[Any, Any]]:
    def meet(a: dict[str, Any], b: dict[str, Any]) -> int:
        """Return how often two records meet."""
        if end.startswith("near"):
            return int(abs(a["at"] - b["at"]) <= NEAR_MS)
        step = SLIDE_MS if "sliding" in end else SIZE_MS
        first, last = sorted([a["at"], b["at"]])
        return len(range(first - first % step, last - SIZE_MS, -step))

    lefts = [row for row in rows if row["part"] >= 0]
    rights = [row for row in rows if row["part"] <= 0]
    return [
        (a, b)
        for a in lefts
        for b in rights
        if a["key"] == b["key"]
        for _ in range(meet(a, b))
    ]


def _plain_pair(a: dict[str, Any], b: dict[str, Any]) -> tuple[Any, ...]:
    parts = a["part"] - b["part"]
    return a["key"], a["n"], a["text"], b["n"], b["text"], parts


def folded(rows: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    def values(field: str, where: Any = bool) -> list[Any]:
        return [row[field] for row in rows if where(row) and row[field] is not None]

    def added(field: str, where: Any = bool) -> Any:
        total = None
        for value in values(field, where):
            total = value if total is None else total + value
        return total

    def extreme(field: str, better: Any, where: Any = bool) -> Any:
        best = None
        for value in values(field, where):
            # NaN, which is not equal to itself, is no value.
            if value == value and (best is None or better(value, best)):
                best = value
        return best

    latest = max(values("at"))
    made = {
        "n": len(rows),
        "total": added("x"),
        "whole": added("n"),
        "average": added("x") / len(values("x")) if values("x") else None,
        "least": extreme("x", lambda a, b: a < b),
        "most": extreme("n", lambda a, b: a > b),
        "money": added("money"),
        "first": extreme("text", lambda a, b: a < b),
        "latest": EPOCH + dt.timedelta(milliseconds=latest),
        "middle": added("n") / len(values("n")) if values("n") else None,
        "some": sum(1 for x in values("x") if x > 1),
        "part": added("n", lambda row: row["part"] >= 0),
        "cheapest": extreme(
            "money", lambda a, b: a < b, lambda row: row["text"] is not None
        ),
    }
    return {name: made[name] for name in names}


def comparable(values: list[Any], what: dict[str, Any], *, exact: bool) -> list[str]:
    """Return results as text in the order that is promised.

    Sums of floats that are merged may have other last digits, or no end.
    """
    texts = []
    for value in values:
        ends = ""
        if hasattr(value, "_asdict"):
            made = value._asdict()
            key = made.pop("key", ())
            key = key if isinstance(key, tuple) else (key,)
            bounds = [made.pop(n) for n in ("window_start", "window_end") if n in made]
            value = (key, *bounds, made) if bounds else made
        elif is_paired(what):
            key, made = value
            made = made if exact else _rounded(made)
            value = (key if isinstance(key, tuple) else (key,), made)
        if isinstance(value, tuple) and isinstance(value[-1], dict):
            ends = str(value[2])
            if not exact:
                value = (*value[:-1], {n: _rounded(x) for n, x in value[-1].items()})
        texts.append((ends, repr(value)))
    if not exact or what["end"].startswith(JOINS):
        # Of sessions that end together any may be the first, and keys of panes.
        texts.sort()
    return [text for _, text in texts]


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def in_batches(rows: list[Any], lengths: list[int]) -> list[list[Any]]:
    batches: list[list[Any]] = []
    place = 0
    while place < len(rows):
        length = lengths[len(batches) % len(lengths)]
        batches.append(rows[place : place + length])
        place += length
    return batches


# Each example runs four jobs.
@settings(max_examples=30)
@given(
    programs,
    st.lists(st.one_of(tame_rows, wild_rows), max_size=40),
    st.lists(st.integers(0, 100), min_size=40, max_size=40),
    st.lists(st.integers(1, 15), min_size=1, max_size=6),
    st.booleans(),
)
def test_columns_rows_and_a_plain_loop_give_the_same(
    what: dict[str, Any],
    records: list[dict[str, Any]],
    jitter: list[int],
    lengths: list[int],
    only_tame: bool,
) -> None:
    if only_tame:
        records = [r for r in records if r["n"] is None or abs(r["n"]) < 10]
        records = [r for r in records if r["x"] is None or 0.1 <= r["x"] < 10]
    if what["end"].startswith(JOINS) or "union" in what["steps"]:
        # What is too late there depends on which input is read first.
        jitter = [late % TOO_LATE for late in jitter]
    rows = timed(records, jitter, lengths[0])
    parts = in_batches(rows, lengths)
    batches = [pa.RecordBatch.from_pylist(part, SCHEMA) for part in parts]
    source = batches or pa.Table.from_pylist([], SCHEMA)
    columns, late = am.run(run(source, what, as_rows=False))
    forced, forced_late = am.run(run(source, what, as_rows=True))
    if what["end"].startswith(JOINS) or what["end"].endswith("sessions"):
        texts = [sorted(map(as_text, each)) for each in (columns, forced)]
        assert texts[0] == texts[1]
    else:
        assert list(map(as_text, columns)) == list(map(as_text, forced))
    assert list(map(as_text, late)) == list(map(as_text, forced_late))
    if max(jitter) < TOO_LATE:
        # Where nothing is too late borders of batches mean nothing.
        table = pa.Table.from_pylist(rows, SCHEMA)
        whole, _ = am.run(run(table, what, as_rows=False))
        texts = [list(map(as_text, each)) for each in (columns, whole)]
        assert sorted(texts[0]) == sorted(texts[1])
    if columns[:1] == ["RecordTypeError"]:
        return
    if what["end"] == "records":
        assert am.run(counted(source, what)) == len(columns)
    by_hand, too_late = reference(parts, what)
    if what["end"] in {"records", "distinct"}:
        by_hand = [(row["key"], row["n"], row["text"]) for row in by_hand]
        columns = [(row.key, row.n, row.text) for row in columns]
    if what["end"] in JOINS:
        columns = [tuple(row) for row in columns]
    check_by_hand(columns, by_hand, what, only_tame=only_tame)
    assert [(r.key, r.n, r.text) for r in late] == [
        (r["key"], r["n"], r["text"]) for r in too_late
    ]


def check_by_hand(
    found: list[Any], by_hand: list[Any], what: dict[str, Any], *, only_tame: bool
) -> None:
    """Compare results with those of the reference, in the order that is promised."""
    exact = what["end"] in {"rolling", "tumbling", "all tumbling"}
    texts = [comparable(each, what, exact=exact) for each in (found, by_hand)]
    plain = what["end"] in {"records", "distinct"} or what["end"].startswith(JOINS)
    if exact or only_tame or plain:
        assert texts[0] == texts[1]
    assert len(texts[0]) == len(texts[1])
