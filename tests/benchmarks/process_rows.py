"""X2 to X4: jobs in two processes, beside one process and a bare stream."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

import aiomailbox as am
from aiomailbox.errors import MissingExtraError
from aiomailbox.runtime.deployment import Embedded
from tests.benchmarks.measure import OURS, Report, System, compare
from tests.benchmarks.records import KEYS, RECORDS_PER_MS, START_MS, Record

_TWO = f"{OURS}, two processes"
_PAYLOAD = bytes(1024)
_LAST = bytes([1]) * 1024
# What our own buffers have: a bare stream that wrote each record alone were no measure.
_CHUNK_RECORDS = 32
_SHARE = 100
_HALVES = "two independent jobs of half of it"
_BUSY_US = 20
# Per key a number of records that both halves divide by the share of results.
_EVEN = 2 * 1000 * _SHARE
# What a run has whose time is that of the start.
_FEW = 100

_COUNTING_SERVER = """
import asyncio
async def count(reader, writer):
    total = 0
    while data := await reader.read(65536):
        total += len(data)
    writer.write(total.to_bytes(8, "big"))
    await writer.drain()
    writer.close()
    done.set()
async def main():
    global done
    done = asyncio.Event()
    server = await asyncio.start_server(count, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await done.wait()
    server.close()
asyncio.run(main())
"""


class Event(msgspec.Struct):
    """A record with a type of its own and an int as its key."""

    number: int
    key: int
    value: float


def make_record(number: int) -> Record:
    """Return the record of that number, as the works in one process have it.

    Its value is 1, so that the sums do not depend on the order of records.
    """
    key = KEYS[number % 1000]
    return (number, key, 1.0, START_MS + number // RECORDS_PER_MS)


def make_event(number: int) -> Event:
    """Return the event of that number."""
    return Event(number, number % 1000, 1.0)


def _is_rare(total: float) -> bool:
    # Few results leave the workers: what is measured is the way between them.
    return total % _SHARE == 0


def _sums(count: int, make: Callable[[int], Any], key: Any, value: Any) -> Any:
    env = am.StreamExecutionEnvironment(parallelism=2)
    made = env.from_collection(range(count)).map(make)
    return env, made.key_by(key).aggregate(am.sum_(value)).filter(_is_rare)


def _second(record: Record) -> str:
    return record[1]


def _third(record: Record) -> float:
    return record[2]


def running_sums(count: int, deployment: Any) -> int:
    """Sum up per key in two subtasks."""
    env, sums = _sums(count, make_record, _second, _third)
    env.configure(deployment=deployment)
    return am.run(sums.count())


def _busy(number: int) -> Record:
    until_s = time.perf_counter() + _BUSY_US / 1e6
    while time.perf_counter() < until_s:
        pass
    return make_record(number)


def busy_sums(count: int, deployment: Any) -> int:
    """Do the same with records that take a while to make."""
    env, sums = _sums(count, _busy, _second, _third)
    env.configure(deployment=deployment)
    return am.run(sums.count())


def keyed_events(count: int) -> int:
    """Sum up events per int key in two processes."""
    env, sums = _sums(count, make_event, "key", "value")
    env.configure(deployment=am.Processes(2))
    return am.run(sums.count())


def plain_events(count: int) -> int:
    """Sum up events per int key in a loop."""
    sums: dict[int, float] = {}
    rare = 0
    for number in range(count):
        event = make_event(number)
        total = sums[event.key] = sums.get(event.key, 0.0) + event.value
        rare += _is_rare(total)
    return rare


def bare_stream(count: int) -> int:
    """Send records to another process over a loopback stream; count what came."""
    chunk = _PAYLOAD * _CHUNK_RECORDS

    async def send(port: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(count // _CHUNK_RECORDS):
            writer.write(chunk)
            await writer.drain()
        writer.write(_PAYLOAD * (count % _CHUNK_RECORDS))
        writer.write_eof()
        total = int.from_bytes(await reader.readexactly(8), "big")
        writer.close()
        await writer.wait_closed()
        return total // len(_PAYLOAD)

    command = [sys.executable, "-c", _COUNTING_SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        return asyncio.run(send(int(server.stdout.readline())))


def byte_records(count: int) -> int:
    """Let one process make records of 1 KiB and another one read them to the last."""
    env = am.StreamExecutionEnvironment(parallelism=1)
    env.configure(deployment=am.Processes(2))
    payloads, last = (_PAYLOAD, _LAST), count - 1
    made = env.from_collection(range(count)).map(
        lambda number: payloads[number == last]
    )
    # A slot sharing group of its own has a process of its own. The reader drops all but
    # the last one, for little, so that nothing but the stream is measured.
    read = made.filter(_LAST.__eq__).slot_sharing_group("reader")
    assert am.run(read.count()) == 1, "the last record has not arrived"
    return count


def reports(records: int, rounds: int) -> Iterator[Report]:
    """Compare; say why not where processes cannot be had."""
    if not hasattr(am, "Processes"):
        print("X2, X3, X4: skipped, since there is no am.Processes")
        return
    with contextlib.suppress(MissingExtraError):
        am.Processes(2)
        yield from _two_processes(records, rounds)
        yield _bytes(records, rounds)
        yield _events(records, rounds)
        return
    print("X2, X3, X4: skipped, since the extra `processes` is not installed")


def halves(work: Callable[[int, Any], int], count: int) -> int:
    """Let two processes do half of a work each, at once, and know nothing of each other.

    On a machine whose second core is not a whole one, nothing is faster than this.
    """
    code = (
        "import sys; from tests.benchmarks import process_rows as rows; "
        "print(getattr(rows, sys.argv[1])(int(sys.argv[2]), rows.Embedded()))"
    )
    command = [sys.executable, "-c", code, work.__name__, str(count // 2)]
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(2)
        ]
        said = [one.communicate()[0] for one in both]
    # Of each key half of the records, and so half of the results.
    return sum(int(text.splitlines()[-1]) for text in said)


def _two_processes(records: int, rounds: int) -> Iterator[Report]:
    yield _beside_halves(
        "X2", "W2 with parallelism 2", running_sums, 10 * records, rounds, 0.85
    )
    yield _beside_halves(
        "X2b",
        f"W2 with parallelism 2 and a function of {_BUSY_US} us",
        busy_sums,
        records // 4,
        rounds,
        0.95,
    )


def _beside_halves(
    name: str,
    title: str,
    work: Callable[[int, Any], int],
    records: int,
    rounds: int,
    wanted: float,
) -> Report:
    """Compare a job in two processes with two jobs of half of its records each."""
    report = Report(name, f"{title}, without the start of processes")
    # So that halves have half of the results.
    count = max(records // _EVEN, 1) * _EVEN
    systems = [
        System(_HALVES, lambda n: halves(work, n), start_records=_EVEN // 10),
        System(_TWO, lambda n: work(n, am.Processes(2)), start_records=_EVEN // 10),
        System(f"{OURS}, one process", lambda n: work(n, Embedded())),
    ]
    report.rows = compare(name, systems, count, rounds)
    report.at_least(wanted, "two independent jobs of half of the records", _TWO)
    return report


def _bytes(records: int, rounds: int) -> Report:
    report = Report(
        "X3", "records of 1 KiB from one process to another, without the start of both"
    )
    systems = [
        System("a bare loopback stream", bare_stream, start_records=_FEW),
        System(_TWO, byte_records, start_records=_FEW),
    ]
    report.rows = compare("X3", systems, records, rounds)
    report.at_least(0.6, "the bare stream", _TWO)
    return report


def _events(records: int, rounds: int) -> Report:
    report = Report(
        "X4",
        "running sums of msgspec records by int key, two processes, without their start",
    )
    systems = [
        System("plain", plain_events),
        System(_TWO, keyed_events, start_records=_FEW),
    ]
    report.rows = compare("X4", systems, records, rounds)
    report.at_least(0.3, "plain", _TWO)
    return report
