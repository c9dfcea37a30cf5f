"""Runs queries from the command line.

python -m examples.nexmark q5 --events 1000000
python -m examples.nexmark all --seed 7
python -m examples.nexmark --compare --events 20000
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import aiomailbox as am
from examples.nexmark.catalogue import QUERIES
from examples.nexmark.compare import compare, table
from examples.nexmark.generator import GeneratorConfig
from examples.nexmark.minute_files import MinuteFiles
from examples.nexmark.streams import event_stream

# Comparing wants many windows, running many events in each.
RATE, RATE_TO_COMPARE = 10_000, 100
EVENTS, EVENTS_TO_COMPARE = 100_000, 20_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; return the exit status."""
    options = parse(arguments)
    comparing = options.compare or options.query == "compare"
    if options.query is None:
        options.query = "all"
    rate, events = options.rate, options.events
    if rate is None:
        rate = RATE_TO_COMPARE if comparing else RATE
    if events is None:
        events = EVENTS_TO_COMPARE if comparing else EVENTS
    config = GeneratorConfig(
        seed=options.seed, rate=rate, out_of_order_group_size=options.disorder
    )
    names = list(QUERIES) if options.query in {"all", "compare"} else [options.query]
    if comparing:
        return show_comparison(config, events, names)
    for name in names:
        am.run(show(name, config, events, options))
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser("python -m examples.nexmark", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "query", nargs="?", choices=[*QUERIES, "all", "compare"], help="default: all"
    )
    parser.add_argument("--events", type=_number, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="of the generator")
    parser.add_argument("--rate", type=_number, help="events per second of event time")
    parser.add_argument(
        "--disorder",
        type=_number,
        default=50,
        help="so many events in a row are shuffled",
    )
    parser.add_argument(
        "--parallelism", type=_number, default=1, help="of the operators"
    )
    parser.add_argument("--paced", action="store_true", help="at the rate in real time")
    parser.add_argument("--show", type=int, default=0, help="print so many results")
    parser.add_argument("--out", type=Path, help="where q10 writes; default: nowhere")
    parser.add_argument("--compare", action="store_true", help="with Spark SQL")
    return parser.parse_args(arguments)


def _number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


class Show:
    """Counts results, and prints the first ones."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.results = 0

    def __call__(self, result: object) -> None:
        """Take a result."""
        if self.results < self.most:
            print(result)
        self.results += 1


async def show(
    name: str, config: GeneratorConfig, events: int, options: argparse.Namespace
) -> None:
    """Run a query, and print how fast it was."""
    env = am.StreamExecutionEnvironment(options.parallelism)
    stream = event_stream(env, config, events, paced=options.paced)
    results = stream.through(QUERIES[name].build)
    counter = Show(options.show)
    results.sink_to(counter).name("results").set_parallelism(1)
    if name == "q10" and options.out:
        results.sink_to(MinuteFiles(options.out)).name("files")
    begin = time.perf_counter()
    await env.execute(name)
    seconds = time.perf_counter() - begin
    title = f"{name:4} {QUERIES[name].title:32}"
    speed = f"{events:,} events in {seconds:.2f} s: {events / seconds:,.0f}/s"
    print(f"{title} {counter.results:10,} results, {speed}", flush=True)


def show_comparison(config: GeneratorConfig, events: int, names: list[str]) -> int:
    """Compare queries with Spark, and print a table."""
    from aiomailbox.connectors.spark import local_session

    spark = local_session("nexmark", cores=2)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        comparisons = asyncio.run(compare(spark, config, events, names))
    finally:
        spark.stop()
    print(table(comparisons))
    return int(any(each.is_wrong for each in comparisons))


if __name__ == "__main__":
    sys.exit(main())
