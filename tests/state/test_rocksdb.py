"""Laws of state on disk beside those of every store."""

from __future__ import annotations

import copy
import errno
import gc
import os
import pickle
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.state.backends import HeapStateStore
from aiomailbox.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from aiomailbox.state.rocksdb.database import RocksDatabase
from aiomailbox.state.rocksdb.store import RocksDBStateStore
from aiomailbox.testing import ManualClock

GROUPS = KeyGroupRange(0, 127)
VALUE = ValueStateDescriptor("value")
LISTED = ListStateDescriptor("listed")
MAPPED = MapStateDescriptor("mapped")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiomailbox.state.rocksdb.store.GENERATION_MIN", 3)
    monkeypatch.setattr("aiomailbox.state.rocksdb.store._OVERHEAD_BYTES", 2**40)
    monkeypatch.setattr("aiomailbox.state.rocksdb.store._READS_PER_BATCH", 2)


def on_disk(path: Path) -> Any:
    return RocksDBStateStore(128, GROUPS, ManualClock(), path=path)


def on_heap() -> Any:
    return HeapStateStore(128, GROUPS, ManualClock())


KEYS = st.integers(0, 12)
SPACES = st.sampled_from(["w1", "w2"])
STEPS = st.one_of(
    st.tuples(st.just("value"), KEYS, st.none() | st.integers(0, 3)),
    st.tuples(st.just("read"), KEYS),
    st.tuples(st.just("in place"), KEYS, st.integers()),
    st.tuples(st.just("list"), KEYS, st.integers()),
    st.tuples(st.just("unlist"), KEYS),
    st.tuples(st.just("map"), KEYS, st.integers(0, 3)),
    st.tuples(st.just("unmap"), KEYS, st.integers(0, 3)),
    st.tuples(st.just("space"), KEYS, SPACES, st.integers()),
    st.tuples(st.just("unspace"), KEYS, SPACES),
    st.tuples(st.just("prefetch"), st.lists(KEYS, max_size=6)),
    st.tuples(st.just("run"), st.lists(KEYS, max_size=6), st.integers(0, 3)),
    st.tuples(st.just("cut")),
    st.tuples(st.just("back")),
)


class Driven:
    """A store, what each step does to it, and what it answers."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.value = store.get_value(VALUE)
        self.listed = store.get_list(LISTED)
        self.mapped = store.get_map(MAPPED)
        self.boxes = store.table(ValueStateDescriptor("box"))
        self.sums = store.table(ValueStateDescriptor("sum"))
        self.spaces = store.namespaced(VALUE)
        self.cut: Any = None

    def do(self, step: tuple[Any, ...]) -> Any:
        name, *arguments = step
        if name == "cut":
            self.cut = self.store.snapshot()
            return None
        if name == "back":
            return None if self.cut is None else self.store.restore([self.cut])
        if name == "prefetch":
            return self.store.prefetch(arguments[0])
        if name == "run":
            return self.run(*arguments)
        key = arguments[0]
        self.store.set_current_key(key)
        match name, *arguments[1:]:
            case "value", value:
                return self.value.update(value)
            case "in place", value:
                box = self.boxes.get(key)
                if box is None:
                    return self.boxes.put(key, [value])
                return box.append(value)
            case "list", value:
                return self.listed.add(value)
            case "unlist", *_:
                return self.listed.clear()
            case "map", value:
                return self.mapped.put(value, (key, value))
            case "unmap", value:
                return self.mapped.remove(value)
            case "space", space, value:
                return self.spaces.put(key, space, value)
            case "unspace", space:
                return self.spaces.remove(key, space)
        return self.look(key)

    def run(self, keys: list[int], value: int) -> list[int]:
        sums = self.sums.for_run(keys)
        for key in keys:
            sums[key] = (sums.get(key) or 0) + value
        return [sums.get(key) for key in keys]

    def look(self, key: int) -> Any:
        self.store.set_current_key(key)
        return (
            self.value.value(),
            self.listed.get(),
            sorted(self.mapped.items()),
            copy.copy(self.boxes.get(key)),
            self.sums.get(key),
            [self.spaces.get(key, space) for space in ("w1", "w2")],
        )


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=60,
)
@given(steps=st.lists(STEPS, max_size=60))
@example(steps=[("in place", 0, 0), ("cut",), ("cut",), ("back",)])
def test_it_does_what_the_heap_does(
    tiny: None, tmp_path: Path, steps: list[tuple[Any, ...]]
) -> None:
    store = on_disk(tmp_path)
    disk, heap = Driven(store), Driven(on_heap())
    try:
        for step in steps:
            assert disk.do(step) == heap.do(step), step
        for key in range(13):
            assert disk.look(key) == heap.look(key)
        assert sorted(disk.boxes.items()) == sorted(heap.boxes.items())
        assert sorted(disk.spaces.items()) == sorted(heap.spaces.items())
        assert disk.store.key_count() == heap.store.key_count()
        for group, entries in heap.store.snapshot().key_groups.items():
            found = disk.store.snapshot().key_groups[group]
            assert {p: sorted(rows) for p, rows in found.items()} == {
                p: sorted(rows) for p, rows in entries.items()
            }
    finally:
        store.close()


def test_a_cut_outlives_its_store_and_goes_with_the_last_that_has_it(
    tmp_path: Path,
) -> None:
    store = on_disk(tmp_path)
    store.table(VALUE).put("a", (1, 2))
    cut = store.snapshot()
    store.table(VALUE).put("a", None)
    store.close()
    store.close()
    assert dict(cut.key_groups) == {81: {0: [("a", (1, 2))]}}
    travelled = pickle.loads(pickle.dumps(cut))
    del cut
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert travelled.key_groups == {81: {0: [("a", (1, 2))]}}


def test_no_file_is_made_before_there_is_state(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    assert (store.estimated_keys(), store.size_bytes()) == (0, 0)
    assert dict(store.snapshot().key_groups) == {}
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_the_cache_holds_no_more_than_its_share(tmp_path: Path) -> None:
    store = RocksDBStateStore(
        128, GROUPS, ManualClock(), path=tmp_path, memory_bytes=1 << 20
    )
    table = store.table(VALUE)
    for key in range(50_000):
        table.prefetch([key])
        table.put(key, key)
    cache = table.cache
    generations = (cache._young, cache._old, cache._leaving)
    held = sum(len(one.contents) for one in generations)
    assert held <= 3 * store._limit.per_generation < 15_000
    assert sum(len(one.places) for one in generations) <= 3 * held
    assert len(cache._put) <= held
    assert len(table) == 50_000
    assert store.size_bytes() > 0
    store.close()


def test_state_after_the_end_is_refused(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    store.close()
    with pytest.raises(Exception, match="after the end"):
        store.table(VALUE)


@pytest.mark.parametrize("seed", range(5))
def test_what_comes_back_while_it_leaves_is_the_newest(
    tiny: None, tmp_path: Path, seed: int
) -> None:
    chosen = random.Random(seed)
    store = on_disk(tmp_path)
    table = store.table(VALUE)
    expected: dict[int, int] = {}
    for number in range(2000):
        key = chosen.randrange(25)
        match chosen.randrange(4):
            case 0:
                expected[key] = number
                table.put(key, number)
            case 1:
                expected.pop(key, None)
                table.remove(key)
            case 2:
                table.prefetch([chosen.randrange(25) for _ in range(3)])
            case _:
                assert table.get(key) == expected.get(key)
    assert dict(table.items()) == expected
    store.close()


@pytest.mark.parametrize(
    ("key", "other"),
    [(0.0, -0.0), ((0.0, "a"), (-0.0, "a")), (((0.0, 1), "a"), ((-0.0, 1), "a"))],
    ids=["float", "tuple", "tuple in a tuple"],
)
def test_keys_that_are_equal_are_one_key(tmp_path: Path, key: Any, other: Any) -> None:
    """Zero has two forms as bytes."""
    assert other == key
    store = on_disk(tmp_path)
    table, spaces = store.table(VALUE), store.namespaced(VALUE)
    table.put(other, 7)
    spaces.put(other, "w", 8)
    cut = store.snapshot()
    table.clear()
    spaces.clear()
    assert (table.get(key), spaces.get(key, "w")) == (7, 8)
    assert spaces.namespaces(key) == ["w"]
    restored = on_disk(tmp_path)
    restored.restore([cut])
    restored.table(VALUE).put(key, 9)
    assert list(restored.table(VALUE).items()) == [(key, 9)]
    store.close()
    restored.close()


FULL_DISK = """
import os, resource, sys
from pathlib import Path
from aiomailbox.state.rocksdb.database import RocksDatabase

database = RocksDatabase(Path(sys.argv[1]), 1 << 20)
database.write(lambda batch: batch.put(b"key", os.urandom(200_000)))
# No file of this process can grow beyond it: what a full disk is like.
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
database.close()
print(os.listdir(sys.argv[1]))
"""


def test_a_database_is_removed_from_a_full_disk_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert printed.stdout == "[]\n", printed.stderr


class Stopping:
    """A RocksDB whose writes stop for a while, or for ever."""

    def __init__(self, db: Any, *, stops: int, is_full: bool = False) -> None:
        self.db = db
        self.stops = stops
        self.is_full = is_full
        self.tries = 0

    def property_value(self, name: str) -> str:
        if name == "rocksdb.background-errors":
            return str(int(self.is_full))
        assert name == "rocksdb.is-write-stopped"
        self.stops -= 1
        return str(int(self.stops > 0))

    def write(self, batch: Any) -> None:
        self.tries += 1
        if self.stops > 0:
            # As RocksDB's: the batch is gone.
            batch.clear()
            raise Exception("Result incomplete: Write stall")
        self.db.write(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.db, name)


@pytest.mark.parametrize("stops", [0, 1, 2, 5])
def test_a_write_waits_until_the_buffers_have_room(tmp_path: Path, stops: int) -> None:
    database = RocksDatabase(tmp_path, 1 << 20)
    database._db = Stopping(database._db, stops=stops)
    database.write(lambda batch: batch.put(b"key", b"1"))
    assert database.get(b"key") == b"1"
    assert database._db.tries == (2 if stops else 1)
    database.close()


def test_a_write_does_not_wait_for_a_disk_that_is_full(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path, 1 << 20)
    database._db = Stopping(database._db, stops=5, is_full=True)
    with pytest.raises(OSError, match="cannot write its buffers") as raised:
        database.write(lambda batch: batch.put(b"key", b"1"))
    assert raised.value.errno == errno.ENOSPC
    database.close()
    assert os.listdir(tmp_path) == []


REALLY_FULL = """
import os, sys
from pathlib import Path
from aiomailbox.state.rocksdb.database import RocksDatabase

# Whether RocksDB fails or waits is a matter of chance.
for _ in range(4):
    database = RocksDatabase(Path(sys.argv[1]), 1 << 20)
    try:
        for number in range(5_000):
            database.write(lambda batch: batch.put(b"%d" % number, os.urandom(2_000)))
    except Exception:
        print("failed")
    database.close()
    print(os.listdir(sys.argv[1]))
"""


@pytest.mark.timeout(120)
def test_no_write_hangs_where_a_disk_is_really_full(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)]
    if (
        os.geteuid()
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("only who may mount a small disk can fill it")
    try:
        command = [sys.executable, "-c", REALLY_FULL, str(tmp_path)]
        printed = subprocess.run(
            command, capture_output=True, text=True, timeout=100, check=False
        )
        assert printed.stdout.split() == ["failed", "[]"] * 4, printed.stderr
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_snapshot_writes_nothing_until_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop takes it; a thread encodes, writes and flushes."""
    store = on_disk(tmp_path)
    table = store.table(VALUE)
    for key in range(1000):
        table.put(str(key), [key])
    log: list[str] = []
    for name in ("write", "snapshot"):
        original = getattr(RocksDatabase, name)

        def logged(self: Any, *args: Any, original: Any = original) -> Any:
            log.append(original.__name__)
            return original(self, *args)

        monkeypatch.setattr(RocksDatabase, name, logged)
    snapshot = store.snapshot()
    for key in range(0, 1000, 3):
        table.get(str(key)).append("later")
        table.put(f"new {key}", key)
    assert log == []
    contents = {
        entry[0]: entry[1]
        for states in snapshot.key_groups.values()
        for entry in states[0]
    }
    assert contents == {str(key): [key] for key in range(1000)}
    assert set(log) == {"write", "snapshot"}
    assert log[-1] == "snapshot"
    assert table.get("3") == [3, "later"]
    assert (table.get("4"), table.get("new 3")) == ([4], 3)
    store.close()


def test_nothing_is_lost_with_a_snapshot_that_nobody_reads(
    tiny: None, tmp_path: Path
) -> None:
    store, model = on_disk(tmp_path), dict[str, Any]()
    table = store.table(VALUE)
    numbers = random.Random(3)
    kept: list[tuple[Any, Any]] = []
    for step in range(600):
        key = str(numbers.randrange(30))
        if numbers.random() < 0.2:
            table.remove(key)
            model.pop(key, None)
        else:
            content = table.get(key) or []
            content.append(step)
            table.put(key, content)
            model.setdefault(key, []).append(step)
        if step % 17 == 0:
            store.snapshot()
        if step % 90 == 0:
            kept.append((store.snapshot(), copy.deepcopy(model)))
        if step % 50 == 0:
            assert {key: table.get(key) for key in map(str, range(30))} == {
                key: model.get(key) for key in map(str, range(30))
            }
    for snapshot, expected in kept:
        found = {
            key: content
            for states in snapshot.key_groups.values()
            for key, content in states[0]
        }
        assert found == expected
    assert dict(table.items()) == model
    store.close()


def test_a_cut_that_fails_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = on_disk(tmp_path)
    table = store.table(VALUE)
    table.put("a", 1)
    snapshot = store.snapshot()
    table.put("a", 2)
    with monkeypatch.context() as patch:
        patch.setattr(
            RocksDatabase, "snapshot", lambda self: os.stat(tmp_path / "missing")
        )
        with pytest.raises(FileNotFoundError):
            dict(snapshot.key_groups)
    assert table.get("a") == 2
    assert dict(snapshot.key_groups) == {81: {0: [("a", 1)]}}
    assert dict(table.items()) == {"a": 2}
    store.close()


@pytest.mark.real_time
def test_threads_read_cuts_while_the_store_goes_on_and_ages(
    tiny: None, tmp_path: Path
) -> None:
    store, model = on_disk(tmp_path), dict[str, Any]()
    table = store.table(VALUE)

    def read(snapshot: Any) -> dict[str, Any]:
        return {
            key: content
            for states in snapshot.key_groups.values()
            for key, content in states[0]
        }

    numbers = random.Random(5)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            expected = copy.deepcopy(model)
            reading = pool.submit(read, store.snapshot())
            steps = 0
            while steps < 50 or not reading.done():
                key = f"key {numbers.randrange(200)}"
                content = table.get(key) or []
                content.append(steps)
                table.put(key, content)
                model.setdefault(key, []).append(steps)
                steps += 1
                del content[:-5], model[key][:-5]
            assert reading.result() == expected
    assert dict(table.items()) == model
    store.close()
