"""Random pipelines over random data: columns, rows, and a plain reference are equal."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, strategies as st

import aiomailbox as am

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("part", pa.int32()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("money", pa.decimal128(12, 2)),
        ("at", pa.timestamp("ms", "UTC")),
    ]
)
LATENESS_MS = 40
SIZE_MS = 25
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
    }
)
wild_rows = st.fixed_dictionaries(
    {
        "key": some_keys,
        "part": st.sampled_from([0, 1, -(2**31)]),
        "n": st.sampled_from([None, 0, -1, 2**53 + 1, LARGE, -LARGE - 1]),
        "x": st.sampled_from([None, 0.0, -0.0, math.nan, math.inf, -math.inf, 1e308]),
        "money": st.sampled_from([None, Decimal("0.10"), Decimal("-9999999.99")]),
    }
)


class Step(NamedTuple):
    """A verb without keys: as it is written, and done to one plain record."""

    apply: Any
    plain: Any


def _plus(record: dict[str, Any]) -> dict[str, Any]:
    n = record["n"]
    return {**record, "m": None if n is None else n // 2 if n >= 0 else -(-n // 2)}


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
    "batches": Step(lambda s: s.map_batches(lambda batch: batch), dict),
    "rebalance": Step(lambda s: s.rebalance(), dict),
    "rescale": Step(lambda s: s.rescale(), dict),
    "sample": Step(lambda s: s.sample(1.0), dict),
}
# What Arrow has no text for is told apart by its type.
AGGREGATES: dict[str, Any] = {
    "n": am.count,
    "total": lambda: am.sum_("x"),
    "whole": lambda: am.sum_("n"),
    "average": lambda: am.mean("x"),
    "least": lambda: am.min_("x"),
    "most": lambda: am.max_("n"),
    "money": lambda: am.sum_("money"),
}
KEYS: list[tuple[str, ...]] = [("key",), ("part",), ("key", "part")]
ENDS = ("rolling", "tumbling", "all", "distinct", "records")

programs = st.fixed_dictionaries(
    {
        "steps": st.lists(st.sampled_from(sorted(STEPS)), max_size=3),
        "keys": st.sampled_from(KEYS),
        "end": st.sampled_from(ENDS),
        "aggregates": st.lists(
            st.sampled_from(sorted(AGGREGATES)), min_size=1, max_size=4, unique=True
        ),
    }
)


def timed(records: list[dict[str, Any]], jitter: list[int]) -> list[dict[str, Any]]:
    """Give records times before and after 1970, tied and late, but never too late."""
    return [
        {**record, "at": -60 + 7 * place - late % LATENESS_MS}
        for place, (record, late) in enumerate(zip(records, jitter, strict=False))
    ]


def program(stream: Any, what: dict[str, Any]) -> Any:
    for name in what["steps"]:
        stream = STEPS[name].apply(stream)
    end = what["end"]
    both = am.aggregates(**{name: AGGREGATES[name]() for name in what["aggregates"]})
    windows = am.TumblingEventTimeWindows.of(am.millis(SIZE_MS))
    if end == "rolling":
        return stream.key_by(*what["keys"]).aggregate(both)
    if end == "tumbling":
        return stream.key_by(*what["keys"]).window(windows).aggregate(both)
    if end == "all":
        return stream.window_all(windows).aggregate(both)
    if end == "distinct":
        return stream.key_by(*what["keys"]).deduplicate()
    return stream


def as_text(values: list[Any]) -> list[str]:
    """Return values as text, which tells zeros, NaN and types apart."""
    return [
        repr(value._asdict() if hasattr(value, "_asdict") else value)
        for value in values
    ]


async def run(source: Any, what: dict[str, Any], *, as_rows: bool) -> list[str]:
    env = am.StreamExecutionEnvironment(parallelism=1)
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(
        am.millis(LATENESS_MS)
    ).with_timestamp_assigner("at")
    stream = env.from_arrow(source, strategy)
    if as_rows:
        stream = stream.map(lambda record: record)
    try:
        return as_text(await program(stream, what).collect())
    except am.JobFailedError as error:
        return [type(error.__cause__).__name__]


def reference(records: list[dict[str, Any]], what: dict[str, Any]) -> list[str] | None:
    """Compute by hand what comes out, in its order; None if it is not defined here."""
    rows: list[dict[str, Any]] = [dict(record) for record in records]
    for name in what["steps"]:
        rows = [made for row in rows if (made := STEPS[name].plain(row)) is not None]
    keys, end, names = what["keys"], what["end"], what["aggregates"]
    if end in {"records", "distinct"}:
        seen: set[Any] = set()
        if end == "distinct":
            rows = [
                row
                for row in rows
                if not ((k := tuple(row[f] for f in keys)) in seen or seen.add(k))
            ]
        return [str((row["key"], row["n"], row["x"])) for row in rows]
    groups: dict[Any, list[dict[str, Any]]] = {}
    found: list[str] = []
    for row in rows:
        key = tuple(row[field] for field in keys)
        start = row["at"] - row["at"] % SIZE_MS
        place = key if end == "rolling" else (start,) if end == "all" else (start, *key)
        groups.setdefault(place, []).append(row)
        if end == "rolling":
            found.append(str(_folded(groups[place], names)))
    if end == "rolling":
        return found
    return sorted(str(_folded(group, names)) for group in groups.values())


def _folded(rows: list[dict[str, Any]], names: list[str]) -> list[Any]:
    def values(field: str) -> list[Any]:
        return [row[field] for row in rows if row[field] is not None]

    def added(field: str) -> Any:
        total = None
        for value in values(field):
            total = value if total is None else total + value
        return total

    def extreme(field: str, better: Any) -> Any:
        best = None
        for value in values(field):
            if best is None or better(value, best):
                best = value
        return best

    made = {
        "n": len(rows),
        "total": added("x"),
        "whole": added("n"),
        "average": added("x") / len(values("x")) if values("x") else None,
        "least": extreme("x", lambda a, b: a < b),
        "most": extreme("n", lambda a, b: a > b),
        "money": added("money"),
    }
    return [made[name] for name in names]


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
    rows = timed(records, jitter)
    table = pa.Table.from_pylist(rows, SCHEMA)
    # Borders of batches mean nothing.
    batches, place = [], 0
    while place < table.num_rows:
        length = lengths[len(batches) % len(lengths)]
        batches += table.slice(place, length).to_batches()
        place += length

    columns = am.run(run(batches, what, as_rows=False))
    assert columns == am.run(run(table, what, as_rows=False))
    forced = am.run(run(batches, what, as_rows=True))
    assert columns == forced
    if "half" in what["steps"] or columns[:1] == ["RecordTypeError"]:
        return
    by_hand = reference(rows, what)
    assert by_hand is not None
    assert len(columns) == len(by_hand)
    if what["end"] in {"rolling", "tumbling", "all"}:
        names = what["aggregates"]
        scope: dict[str, Any] = {"nan": math.nan, "inf": math.inf, "Decimal": Decimal}
        scope["datetime"] = dt
        # It is text of this test's own making.
        got = [[eval(text, scope)[name] for name in names] for text in columns]
        texts = list(map(str, got))
        assert (texts if what["end"] == "rolling" else sorted(texts)) == by_hand
