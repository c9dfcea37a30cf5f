"""A DataFrame of texts through a language model's API, and back into a table of Spark.

The service runs in this program, on loopback, and behaves like such an API. It grants a
number of tokens a minute, and answers 429 with Retry-After beyond. Now and then others
use the same account and leave nothing for a second. Some calls hang, some fail, and the
service always refuses a text without words. The pipeline keeps the limit in tokens, ends
attempts that take too long, repeats calls that may succeed, and keeps the other texts as
dead letters.

It runs twice, in a program of its own each time. The first one streams the rows out of
Spark and appends the results to a table. The second one runs inside Spark's workers
(``apply_to``). Each program is killed half way and started again, and repeats no
finished call. The service's own log says whether that is true.

Run it with ``python examples/spark_llm_enrichment.py``; ``--help`` says more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast

import aiohttp
from aiohttp import web

import aiomailbox as am

Mode = Literal["embedded", "applied"]

ROWS = 20_000
TOKENS_PER_MINUTE = 900_000
PRICE_PER_MILLION = 2.50
CONCURRENCY = 64
TIMEOUT_S = 2.0
REFUSED_S = 1.0
ATTEMPTS = 5
WORDS = ["late", "broken", "great", "fast", "slow", "kind", "rude", "cheap", "lovely"]
GOOD = {"great", "fast", "kind", "cheap", "lovely"}


class Text(NamedTuple):
    """A row of the DataFrame."""

    id: int
    text: str


class Labelled(NamedTuple):
    """A text with what the model said of it."""

    id: int
    label: str
    tokens: int


def tokens_of(text: Text) -> int:
    """Return what a text costs of the limit."""
    return 10 + len(text.text.split())


def make_texts(spark: Any, rows: int) -> Any:
    """Return a DataFrame of reviews; one of 500 has no words."""
    words = ", ".join(f"'{word}'" for word in WORDS)
    word = (
        f"element_at(array({words}), cast(1 + (id * 7 + i * i) % {len(WORDS)} AS int))"
    )
    text = f"array_join(transform(sequence(1, 5 + id % 11), i -> {word}), ' ')"
    return spark.range(0, rows, 1, 2).selectExpr(
        "id", f"CASE WHEN id % 500 = 250 THEN '' ELSE {text} END AS text"
    )


class LanguageModel:
    """Serves an API on a free port of loopback; ``async with`` starts and stops it."""

    def __init__(self, tokens_per_minute: int = TOKENS_PER_MINUTE) -> None:
        self.url = ""
        self.calls = 0
        self.statuses: Counter[int | str] = Counter()
        self.answered: Counter[int] = Counter()
        self.tokens = 0
        self.tokens_per_minute = tokens_per_minute
        # When the present program made its first call, and got its last answer.
        self._first_s = self._last_s = 0.0
        # Texts that were asked about although a killed program had got the answer.
        self.asked_again: set[int] = set()
        self._answered_before: set[int] = set()
        self._asked: Counter[int] = Counter()
        # Texts that were asked about when the service did not refuse everything.
        self._taken: set[int] = set()
        self._progress = asyncio.Condition()
        self._rate = tokens_per_minute / 60
        self._left = self._rate
        self._left_at_s = time.monotonic()
        # How long it has refused everything.
        self.refused_s = 0.0
        self._refuses_until_s = 0.0
        app = web.Application()
        app.router.add_post("/v1/label", self._label)
        self._runner = web.AppRunner(app, access_log=None)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def texts(self) -> int:
        """How many texts were asked about."""
        return len(self._asked)

    def on_kill(self) -> None:
        """Remember what was answered: the next program need not ask for it."""
        self._answered_before = set(self.answered)

    def take_busy_s(self) -> float:
        """Return how long the present program asked; the next one begins anew."""
        busy_s = max(0.0, self._last_s - self._first_s)
        self._first_s = self._last_s = 0.0
        return busy_s

    async def until_answered(self, count: int) -> None:
        """Return when so many texts are answered."""
        async with self._progress:
            await self._progress.wait_for(lambda: len(self.answered) >= count)

    async def _label(self, request: web.Request) -> web.Response:
        asked = await request.json()
        number, words = asked["id"], asked["text"].split()
        self.calls += 1
        self._first_s = self._first_s or time.monotonic()
        self._asked[number] += 1
        if number in self._answered_before:
            self.asked_again.add(number)
        status = self._status(number, words, is_first=self._asked[number] == 1)
        await asyncio.sleep(0.05)
        if status == "hangs":
            self.statuses[status] += 1
            await asyncio.sleep(2 * TIMEOUT_S)
            return web.Response(status=504)
        self.statuses[status] += 1
        if status != 200:
            headers = {"Retry-After": f"{REFUSED_S:.0f}"} if status == 429 else {}
            return web.Response(status=int(status), headers=headers)
        self.answered[number] += 1
        self.tokens += asked["tokens"]
        self._last_s = time.monotonic()
        async with self._progress:
            self._progress.notify_all()
        good = 2 * sum(word in GOOD for word in words) >= len(words)
        return web.json_response({"label": "good" if good else "bad"})

    def _status(self, number: int, words: list[str], *, is_first: bool) -> int | str:
        if not words:
            return 400
        now_s = time.monotonic()
        earned = (now_s - self._left_at_s) * self._rate
        self._left, self._left_at_s = min(self._rate, self._left + earned), now_s
        # Others use the same account now and then: nothing is left for a second.
        if is_first and number % 2_000 == 7 and now_s > self._refuses_until_s:
            self._refuses_until_s = now_s + REFUSED_S
            self.refused_s += REFUSED_S
        if self._left < 0 or now_s < self._refuses_until_s:
            return 429
        self._left -= 10 + len(words)
        if number in self._taken:
            return 200
        self._taken.add(number)
        if number % 400 == 9:
            return "hangs"
        return 500 if number % 250 == 3 else 200


class LabelClient:
    """Asks the model; the connections are opened once, when the task starts."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def open(self, context: Any) -> None:
        self._session = aiohttp.ClientSession(self._url)

    async def __call__(self, text: Text) -> Labelled:
        assert self._session is not None
        tokens = tokens_of(text)
        asked = {"id": text.id, "text": text.text, "tokens": tokens}
        async with self._session.post("/v1/label", json=asked) as answer:
            if answer.status == 429:
                raise am.RetryLater(retry_after=answer.headers.get("Retry-After"))
            answer.raise_for_status()
            return Labelled(text.id, (await answer.json())["label"], tokens)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def may_succeed_later(error: BaseException) -> bool:
    """Whether a failure is worth another attempt: not if the text itself is wrong."""
    if isinstance(error, aiohttp.ClientResponseError):
        return error.status >= 500
    return isinstance(error, aiohttp.ClientError | TimeoutError)


REFUSED = am.OutputTag("refused")


def labelling(url: str, tokens_per_minute: int) -> am.Pipeline[Text, Labelled]:
    """Return the pipeline, which is the same wherever it runs."""

    @am.pipeline
    def label(texts: am.DataStream[Text]) -> am.DataStream[Labelled]:
        # A little less than what is allowed: the server counts when calls arrive.
        limit = am.RateLimit(
            0.95 * tokens_per_minute / 60, per=1.0, burst=0.2 * tokens_per_minute / 60
        )
        return texts.map_async(
            LabelClient(url),
            concurrency=CONCURRENCY,
            ordered=False,
            timeout=TIMEOUT_S,
            retry=am.Retry(ATTEMPTS, initial=0.1, retry_on=may_succeed_later),
            limit=limit,
            weight=tokens_of,
            on_error=am.dead_letter(REFUSED),
            journal=True,
            id="id",
        ).uid("label")

    return label


def session(place: Path) -> Any:
    """Return a Spark session with the table of results."""
    from aiomailbox.connectors.spark import local_session

    spark = local_session("labels")
    spark.sparkContext.setLogLevel("ERROR")
    spark.sql(
        "CREATE TABLE IF NOT EXISTS labels (id BIGINT, label STRING, tokens BIGINT, "
        f"added_by STRING) USING parquet LOCATION '{place / 'labels'}'"
    )
    return spark


async def embedded(place: Path, url: str, rows: int, tokens_per_minute: int) -> None:
    """Stream the texts into this program, and append the results to a table."""
    spark = session(place)
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(am.seconds(2.0), directory=place / "job")
    df = make_texts(spark, rows)
    try:
        # What a program that was killed has staged.
        source = am.SparkSource.from_stage(place / "texts", records=Text)
    except am.InvalidArgumentError:
        source = am.SparkSource(df, records=Text, order_by="id", stage=place / "texts")
    texts = env.from_source(source, name="texts").uid("texts")
    labels = texts.through(labelling(url, tokens_per_minute))
    table = am.SparkTableSink(spark, "labels", stage=place / "stage", ledger="added_by")
    labels.sink_to(table).uid("table")
    refused = labels.get_side_output(REFUSED).map(
        lambda letter: {"id": letter.record.id}
    )
    refused.sink_to(am.FileSink(place / "refused", "jsonl")).uid("refused")
    async with env.start("labels", restore_from="latest") as job:
        await job.result()
    letters = (place / "refused").glob("*.jsonl")
    report(
        rows=spark.table("labels").count(),
        ids=spark.table("labels").select("id").distinct().count(),
        dead_letters=sum(len(file.read_text().splitlines()) for file in letters),
    )


async def applied(place: Path, url: str, rows: int, tokens_per_minute: int) -> None:
    """Run the same pipeline inside Spark's workers, once, and keep the results."""
    from pyspark.sql import functions as sf

    spark = session(place)
    pipeline = labelling(url, tokens_per_minute)
    texts = make_texts(spark, rows)
    lazy = pipeline.apply_to(
        texts,
        schema=Labelled,
        records=Text,
        order_by="id",
        journal=place / "journal",
    )
    # What a killed program has left half-written.
    await asyncio.to_thread(shutil.rmtree, place / "kept", ignore_errors=True)
    kept = await asyncio.to_thread(lazy.materialize, place / "kept")
    labels = kept.result.withColumn("added_by", sf.lit("applied"))
    labels.write.mode("append").saveAsTable("labels")
    report(
        rows=spark.table("labels").count(),
        ids=spark.table("labels").select("id").distinct().count(),
        dead_letters=kept.dead_letters.count(),
    )


def report(**numbers: int) -> None:
    """Say what came out, to the program that started this one."""
    print(json.dumps(numbers), flush=True)


@contextlib.asynccontextmanager
async def program(log: Path, *arguments: object) -> AsyncGenerator[Process]:
    """Run this file in a program of its own, which ends with the block.

    Spark says a lot when it starts, and more when it is killed: that goes into a file.
    """
    with log.open("ab") as said:
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, *map(str, arguments), stdout=PIPE, stderr=said
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def live(
    mode: Mode, place: Path, model: LanguageModel, rows: int, *, answers: int | None
) -> dict[str, int]:
    """Let a job run to its end, or kill it when so many texts are answered."""
    arguments: list[object] = ["--job", mode, "--place", place, "--url", model.url]
    arguments += ["--rows", rows, "--tokens-per-minute", model.tokens_per_minute]
    log = place / "spark.log"
    async with program(log, *arguments) as process:
        output = asyncio.create_task(process.communicate())
        if answers is not None:
            reached = asyncio.create_task(model.until_answered(answers))
            await asyncio.wait([output, reached], return_when=asyncio.FIRST_COMPLETED)
            reached.cancel()
            if not output.done():
                process.kill()
        found, _ = await output
    if answers is None and process.returncode == 0:
        return cast("dict[str, int]", json.loads(found.splitlines()[-1]))
    if answers is not None and process.returncode == -signal.SIGKILL:
        return {}
    said = await asyncio.to_thread(log.read_text, errors="replace")
    raise RuntimeError(f"{mode} ended with {process.returncode}:\n{said[-4000:]}")


async def run(
    mode: Mode, place: Path, rows: int, tokens_per_minute: int, *, kills: int
) -> tuple[LanguageModel, dict[str, int]]:
    """Run the job of a mode, killed so many times on its way; print what it took."""
    await asyncio.to_thread(place.mkdir, parents=True)
    print(f"{mode}: {rows:,} texts", flush=True)
    async with LanguageModel(tokens_per_minute) as model:
        busy_s = 0.0
        for life in range(1, kills + 1):
            await live(mode, place, model, rows, answers=rows * life // (kills + 1))
            model.on_kill()
            busy_s += model.take_busy_s()
            answered = len(model.answered)
            print(f"  killed after {answered:,} answers; begun again", flush=True)
        found = await live(mode, place, model, rows, answers=None)
        busy_s += model.take_busy_s()
    tokens_s = 60 * model.tokens / tokens_per_minute
    ideal_s = tokens_s + model.refused_s
    price = model.tokens * PRICE_PER_MILLION / 1e6
    statuses = ", ".join(f"{each}: {n:,}" for each, n in model.statuses.most_common())
    print(
        f"  rows in the table: {found['rows']:,}, of {found['ids']:,} texts",
        f"  dead letters: {found['dead_letters']}",
        f"  calls: {model.calls:,}, of which retries: {model.calls - model.texts}",
        f"  answers: {statuses}",
        f"  answered before a kill and asked again: {len(model.asked_again)}, which were "
        "under way",
        f"  cost: {model.tokens:,} tokens, ${price:.2f}",
        f"  time: {busy_s:.1f} s, {busy_s / ideal_s:.2f} x the ideal: {tokens_s:.1f} s for "
        f"all tokens at the full rate, {model.refused_s:.1f} s in which the service "
        "refused all calls",
        sep="\n",
        flush=True,
    )
    return model, found


async def main(rows: int = ROWS, tokens_per_minute: int = TOKENS_PER_MINUTE) -> None:
    """Run both modes."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        await run("embedded", place / "embedded", rows, tokens_per_minute, kills=1)
        await run("applied", place / "applied", rows, tokens_per_minute, kills=1)


JOBS = {"embedded": embedded, "applied": applied}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--tokens-per-minute", type=int, default=TOKENS_PER_MINUTE)
    parser.add_argument("--job", choices=list(JOBS), help="run one job, not the model")
    parser.add_argument("--place", type=Path)
    parser.add_argument("--url")
    given = parser.parse_args()
    if given.job:
        job = JOBS[given.job]
        asyncio.run(job(given.place, given.url, given.rows, given.tokens_per_minute))
    else:
        asyncio.run(main(given.rows, given.tokens_per_minute))
