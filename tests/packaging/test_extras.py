"""Extras: each that an error names exists, and `arrow` needs no Spark."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from aiomailbox.columnar.map_batches import _LIBRARIES
from aiomailbox.connectors import _BEHIND_AN_EXTRA

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

# Nothing that the extra `arrow` does not bring.
WITHOUT_SPARK = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "pandas", "polars", "fsspec"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())

import pyarrow as pa, pyarrow.compute as pc
import aiomailbox as am

out = sys.argv[1]
env = am.StreamExecutionEnvironment()
sales = env.from_arrow(pa.table({"shop": ["a", "b", "a"], "price": [1.0, 2.0, 3.0]}))
twice = sales.select("shop", twice=pc.field("price") * 2).filter(pc.field("twice") > 2)
twice.sink_to(am.ParquetSink(out))
am.run(env.execute())
read = env.from_source(am.FileSource(out + "/*.parquet")).key_by("shop")
totals = read.full_window_partition().aggregate(am.sum_("twice"), include_key=True)
print(sorted(am.run(totals.collect())))
windows = read.count_window(1).aggregate(am.aggregates(n=am.count()))
print(len(am.run(windows.collect())))
table = read.map_batches(lambda batch: {"n": batch["twice"] + 1}, form="numpy")
print(sorted(row.n for row in am.run(table.collect())))
"""


def test_parquet_and_columns_need_no_spark(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[('a', 6.0), ('b', 4.0)]",
        "2",
        "[5.0, 7.0]",
    ]


def test_every_extra_that_an_error_names_exists() -> None:
    named = {extra for _, extra, _ in _BEHIND_AN_EXTRA.values()}
    named |= set(_LIBRARIES.values())
    for path in (ROOT / "aiomailbox").rglob("*.py"):
        text = path.read_text("utf-8")
        named |= set(re.findall(r'MissingExtraError\([^()]*, "(\w+)"\)', text))
    assert named >= {"arrow", "polars", "pandas", "spark", "sketch", "rocksdb"}
    assert named <= set(EXTRAS)


def test_all_has_all_but_what_has_another_licence_or_is_for_the_demo() -> None:
    (wanted,) = EXTRAS["all"]
    names = wanted.partition("[")[2].rstrip("]").split(",")
    assert set(names) == set(EXTRAS) - {"all", "aiostream", "demo"}
