"""The command line shows what checkpoints there are, and says how it went."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiomailbox.checkpoint.writer import CheckpointWriter
from aiomailbox.cli import main
from aiomailbox.cli.exit_codes import ExitCode
from aiomailbox.storage.local import LocalStorage
from tests.checkpoint.checkpoints import handles, open_store, take

LARGE = "x" * 20_000


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with two checkpoints of a job, half of one, a savepoint."""
    with contextlib.closing(open_store(tmp_path / "jobs")) as store:
        store.new_epoch()
        for number in (1, 2, 10):
            take(store, tmp_path / "jobs", number, payload=LARGE)
        take(store, tmp_path, 11, location=tmp_path / "saved")
        store.discard(1)
        handles(
            CheckpointWriter(LocalStorage(tmp_path / "jobs"), "job"), 12, payload=LARGE
        )
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    """Return the exit code and what was printed."""
    code = main(["checkpoints", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_list_shows_every_checkpoint_in_order(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "list", place)
    head, *rows = [line.split("\t") for line in out.splitlines()]
    assert head[:4] == ["PLACE", "ID", "KIND", "JOB"]
    assert [Path(row[0]).name for row in rows] == ["saved", "chk-2", "chk-10", "chk-12"]
    assert rows[2][1:6] == ["10", "checkpoint", "job", "1", "1970-01-01T00:00:10+00:00"]
    assert rows[3][7] == "it is not complete"
    assert code == ExitCode.DAMAGED
    code, out, _ = run(capsys, "list", place / "jobs/job/chk-10", "--json")
    (found,) = msgspec.json.decode(out)
    assert (found["checkpoint_id"], found["problem"], code) == (10, "", ExitCode.FINE)
    assert found["size_bytes"] > 2 * len(LARGE)


def test_inspect_shows_operators_and_states(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "inspect", place / "jobs/job/chk-10")
    assert "count\tcount\t2\tseen\tvalue\t\tmsgpack/2" in out.splitlines()
    assert any(line.startswith("1.1\t1.1-1\t") for line in out.splitlines())
    assert code == ExitCode.FINE
    code, out, _ = run(capsys, "inspect", place / "saved", "--json")
    (found,) = msgspec.json.decode(out)
    states = {
        state["name"]: state["classes"]
        for operator in found["operators"]
        for state in operator["states"]
    }
    assert list(states["seen"]) == ["tests.checkpoint.checkpoints:Visit"]


def test_verify_reads_everything(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = place / "jobs/job/chk-10"
    code, out, _ = run(capsys, "verify", checkpoint)
    assert (code, out) == (ExitCode.FINE, f"{checkpoint}: whole\n")
    file = checkpoint / "1.1-1"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    code, out, _ = run(capsys, "verify", checkpoint)
    assert code == ExitCode.DAMAGED
    assert "1.1-1 cannot be read: a checksum does not match" in out
    code, out, _ = run(capsys, "inspect", checkpoint)
    assert code == ExitCode.DAMAGED
    assert "problem: " in out
    code, _, _ = run(capsys, "list", checkpoint)
    assert code == ExitCode.FINE


def test_delete_removes_one_with_all_its_files(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = place / "jobs/job"
    code, _, err = run(capsys, "delete", place)
    assert code == ExitCode.USAGE
    assert "has 4 checkpoints" in err
    for one in (job / "chk-2", job / "chk-12", place / "saved"):
        assert run(capsys, "delete", one, "--yes")[0] == ExitCode.FINE
        assert not one.exists() or not list(one.iterdir())
    assert sorted(path.name for path in job.iterdir()) == [".lock", "_job", "chk-10"]
    assert run(capsys, "delete", job, "--all", "--yes", "--json")[1:] == (
        f'[\n  "{job}/chk-10"\n]\n',
        "",
    )
    assert run(capsys, "list", job)[0] == ExitCode.NOTHING
    with contextlib.closing(open_store(place / "jobs")) as store:
        assert store.load("latest", []) is None


def test_delete_asks_first(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = place / "jobs/job/chk-2"
    for answer, code in (("n", ExitCode.USAGE), ("y", ExitCode.FINE)):
        done = subprocess.run(
            [sys.executable, "-m", "aiomailbox", "checkpoints", "delete", checkpoint],
            input=f"{answer}\n",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code
        assert str(checkpoint) in done.stderr
        assert checkpoint.exists() is (answer == "n")


def test_a_checkpoint_of_a_running_job_is_not_deleted(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(open_store(place / "jobs")):
        code, _, err = run(capsys, "delete", place / "jobs/job/chk-2", "--yes")
    assert code == ExitCode.IN_USE
    assert "job 'job'" in err
    assert (place / "jobs/job/chk-2/_metadata").exists()


def test_other_ends_have_codes_of_their_own(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, "list", place / "nowhere")[0] == ExitCode.NOTHING
    assert run(capsys, "lisst", place)[0] == ExitCode.USAGE
    assert run(capsys, "--help")[0] == ExitCode.FINE

    def refuse(place: str) -> None:
        raise PermissionError(13, "Permission denied", place)

    monkeypatch.setattr("aiomailbox.cli.checkpoints.find_checkpoints", refuse)
    code, _, err = run(capsys, "list", "/secret")
    assert code == ExitCode.FAILED
    assert "Permission denied: '/secret'" in err


def test_without_the_extra_its_name_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("aiomailbox.cli.")]:
        if name != "aiomailbox.cli.exit_codes":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main([]) == ExitCode.USAGE
    told = capsys.readouterr().err
    assert "pip install " in told
    assert "[cli]" in told
