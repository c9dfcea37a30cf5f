"""Whatever happens, a complete checkpoint has all its files, and no others stay."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given, settings, strategies as st

from aiomailbox.checkpoint.reader import CheckpointFiles
from aiomailbox.checkpoint.writer import CheckpointWriter
from aiomailbox.ids import SubtaskId, VertexId
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.state.snapshot import KeyedStateSnapshot, StateFile, StateMeta
from aiomailbox.storage.local import LocalStorage
from aiomailbox.task.in_flight import TaskSnapshot
from aiomailbox.task.messages import TaskHandle
from tests.checkpoint.checkpoints import COUNT, metadata, open_store

META = StateMeta("seen", "value", namespaced=False, ttl=False)
TASKS = [SubtaskId(VertexId(1), index) for index in range(2)]
RETAINED = 2
CONCURRENT = 2


class Files(dict[int, Any]):
    """The entries of a database, as far as a writer of files looks at them."""

    def __init__(self, files: tuple[StateFile, ...]) -> None:
        super().__init__()
        self._files = files

    def files(self) -> tuple[StateFile, ...]:
        """Return the files."""
        return self._files

    def classes(self) -> dict[str, Any]:
        """Return the classes in them: none."""
        return {}


class Table:
    """The tables of a task's database: new ones come, old ones are merged."""

    def __init__(self, place: Path, random: Random) -> None:
        self._place = place
        self._random = random
        self._live: list[str] = []
        self._made = 0
        place.mkdir(parents=True)

    def change(self) -> None:
        """Write a table, and maybe merge some into another one."""
        if self._random.random() < 0.3:
            self._live = self._live[self._random.randint(0, len(self._live)) :]
        self._made += 1
        self._live.append(f"{self._made:06}.sst")
        self._write(self._live[-1])

    def snapshot(self) -> TaskSnapshot:
        """Return what there is now."""
        # As RocksDB's manifest: of the same name, and never the same.
        self._write("MANIFEST")
        files = [StateFile(name, self._place / name, True) for name in self._live]
        files.append(StateFile("MANIFEST", self._place / "MANIFEST", False))
        keyed = KeyedStateSnapshot(128, [META], Files(tuple(files)))
        return TaskSnapshot(operators={COUNT: OperatorSnapshot((keyed,))})

    def _write(self, name: str) -> None:
        (self._place / name).write_bytes(self._random.randbytes(20))


class Run:
    """One life of a job after the other, with everything that may go wrong."""

    def __init__(self, place: Path, random: Random) -> None:
        self._place = place
        self._random = random
        self._lives = 0
        self.begin()

    def begin(self) -> None:
        """Begin a life; the one before has died."""
        self.store = open_store(self._place / "jobs")
        self.epoch = self.store.new_epoch()
        storage = LocalStorage(self._place / "jobs")
        self.writer = CheckpointWriter(storage, "job")
        self.next_id = self.store.next_checkpoint_id
        self.pending: dict[int, list[Any]] = {}
        self.abandoned: list[tuple[int, SubtaskId, TaskSnapshot]] = []
        self._restart_tasks()

    def _restart_tasks(self) -> None:
        self._lives += 1
        self.tables = [
            Table(self._place / f"db-{self._lives}-{index}", self._random)
            for index in range(len(TASKS))
        ]

    def trigger(self) -> None:
        """Let tasks take their snapshots; they are written later."""
        if len(self.pending) < CONCURRENT:
            self.pending[self.next_id] = [table.snapshot() for table in self.tables]
            self.next_id += 1

    def write(self) -> None:
        """Write one of the snapshots that wait, if it is still wanted or not."""
        waiting = [
            (number, index)
            for number, parts in self.pending.items()
            for index, part in enumerate(parts)
            if isinstance(part, TaskSnapshot)
        ]
        if waiting:
            number, index = self._random.choice(waiting)
            parts = self.pending[number]
            parts[index] = self._written(number, TASKS[index], parts[index])
        elif self.abandoned:
            self._written(*self.abandoned.pop(0))

    def _written(
        self, number: int, task: SubtaskId, snapshot: TaskSnapshot
    ) -> TaskHandle:
        return self.writer.write_task(task, self.epoch, number, snapshot)

    def complete(self) -> None:
        """Complete a checkpoint that all tasks have written; older ones are over."""
        ready = [
            number
            for number, parts in self.pending.items()
            if all(isinstance(part, TaskHandle) for part in parts)
        ]
        if not ready:
            return
        number = self._random.choice(ready)
        self.store.complete(metadata(number, self.pending.pop(number)))
        for older in [one for one in self.pending if one < number]:
            self.abort(older)
        for old in self.store.newest_first()[RETAINED:]:
            self.store.discard(old)

    def abort(self, number: int | None = None) -> None:
        """Give a checkpoint up; its threads do not hear of that."""
        if number is None:
            number = self._random.choice(list(self.pending) or [0])
        for task, part in zip(TASKS, self.pending.pop(number, []), strict=False):
            if isinstance(part, TaskSnapshot):
                self.abandoned.append((number, task, part))
        self.store.discard(number)

    def change(self) -> None:
        """Let a database go on."""
        self._random.choice(self.tables).change()

    def fail(self) -> None:
        """Begin another attempt in the same program."""
        for number in list(self.pending):
            self.abort(number)
        self.abandoned.clear()
        self.epoch = self.store.new_epoch()
        self._restart_tasks()

    def die(self) -> None:
        """Begin another life."""
        self.store.close()
        self.begin()

    def check(self) -> None:
        """Compare all digests of all complete checkpoints."""
        for number in self.store.newest_first():
            CheckpointFiles.at(f"{self.store.place}/chk-{number}").verify()

    def close(self) -> None:
        """End the last life."""
        self.store.close()

    def shared(self) -> set[str]:
        """Return the names of the shared files that there are."""
        return {path.name for path in (self._place / "jobs/job/shared").glob("*")}


STEPS = [
    *["change"] * 4,
    *["trigger"] * 3,
    *["write"] * 6,
    *["complete"] * 4,
    "abort",
    "fail",
    "die",
]


@settings(max_examples=15)
@given(st.integers(0, 2**32))
def test_complete_checkpoints_have_all_their_files(seed: int) -> None:
    random = Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        run = Run(Path(directory), random)
        with contextlib.closing(run):
            for step in random.choices(STEPS, k=120):
                getattr(run, step)()
                if step == "complete":
                    run.check()
            run.die()
            run.check()
            used = [
                CheckpointFiles.at(f"{run.store.place}/chk-{number}")
                .metadata()
                .shared_files
                for number in run.store.newest_first()
            ]
            assert run.shared() == set().union(*used)
