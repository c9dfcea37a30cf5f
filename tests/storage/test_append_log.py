"""A log that survives a crash at any byte."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import DamagedFileError
from aiomailbox.storage.append_log import AppendLog, LogSegment


def entries(directory: Path) -> list[bytes]:
    log = AppendLog(directory)
    try:
        return [entry for _, entry in log.entries()]
    finally:
        log.close()


def first_of_two_segments(directory: Path) -> Path:
    log = AppendLog(directory)
    log.append([b"one"])
    log.roll()
    log.append([b"two"])
    log.close()
    return min(directory.glob("*.log"))


def write(directory: Path, *written: bytes) -> None:
    log = AppendLog(directory)
    log.append(written)
    log.close()


def test_entries_come_back_in_order_after_reopening(tmp_path: Path) -> None:
    write(tmp_path, b"one", b"")
    write(tmp_path, b"two")
    assert entries(tmp_path) == [b"one", b"", b"two"]


def test_entries_are_found_with_their_segments(tmp_path: Path) -> None:
    log = AppendLog(tmp_path)
    for number in range(4):
        log.append([b"%d" % number])
        assert log.roll() == number + 1
    log.append([b"4"])
    assert list(log.entries()) == [(number, b"%d" % number) for number in range(5)]
    log.close()
    log.close()


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=6), st.data())
def test_a_cut_off_end_loses_only_what_was_cut(
    written: list[bytes], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write(directory, *written)
        (path,) = directory.glob("*.log")
        whole = path.read_bytes()
        end = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:end])
        kept = entries(directory)
        assert kept == written[: len(kept)]
        ends = [10]
        for entry in written:
            ends.append(ends[-1] + 8 + len(entry))
        assert len(kept) == sum(each <= end for each in ends[1:])
        # And goes on as if nothing had been there.
        write(directory, b"more")
        assert entries(directory) == [*kept, b"more"]


def test_zeros_at_the_end_are_no_entries(tmp_path: Path) -> None:
    write(tmp_path, b"one")
    (path,) = tmp_path.glob("*.log")
    path.write_bytes(path.read_bytes() + bytes(4096))
    assert entries(tmp_path) == [b"one"]


def test_damage_before_the_last_segment_is_not_passed_over(tmp_path: Path) -> None:
    log = AppendLog(tmp_path)
    log.append([b"one", b"two"])
    log.roll()
    log.close()
    path = min(tmp_path.glob("*.log"))
    damaged = bytearray(path.read_bytes())
    damaged[20] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DamagedFileError, match="no entry begins at byte 10"):
        AppendLog(tmp_path)


def test_a_crash_between_two_segments_leaves_room_behind_the_first(
    tmp_path: Path,
) -> None:
    path = first_of_two_segments(tmp_path)
    path.write_bytes(path.read_bytes() + bytes(1 << 18))
    assert entries(tmp_path) == [b"one", b"two"]
    path.write_bytes(path.read_bytes() + bytes(100) + b"x")
    with pytest.raises(DamagedFileError, match="no entry begins at byte"):
        AppendLog(tmp_path)


def test_a_killed_writer_leaves_what_it_appended_and_room(tmp_path: Path) -> None:
    program = """
        import os, signal, sys
        from aiomailbox.storage.append_log import AppendLog
        log = AppendLog(sys.argv[1])
        for number in range(4):
            for _ in range(12_000):
                log.append_one(b"%d" % number * 20)
            if number < 3:
                log.roll()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    kept = entries(tmp_path)
    assert kept == [b"%d" % number * 20 for number in range(4) for _ in range(12_000)]


def changed(directory: Path, place: int, bytes_: bytes) -> Path:
    """Write something else over a part of the newest segment."""
    path = max(directory.glob("*.log"))
    data = bytearray(path.read_bytes())
    assert data[place : place + len(bytes_)] != bytes_
    data[place : place + len(bytes_)] = bytes_
    path.write_bytes(data)
    return path


@given(st.data())
def test_one_changed_byte_is_damage_wherever_whole_entries_follow(
    data: st.DataObject,
) -> None:
    """Also in the newest segment: whole entries have been written behind it."""
    content = st.binary(min_size=1, max_size=300)
    written = data.draw(st.lists(content, min_size=2, max_size=5))
    last = 10 + sum(8 + len(each) for each in written[:-1])
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write(directory, *written)
        (path,) = directory.glob("*.log")
        whole = bytearray(path.read_bytes())
        place = data.draw(st.integers(10, last - 1))
        whole[place] ^= data.draw(st.integers(1, 255))
        path.write_bytes(whole)
        for _ in range(2):
            # Refused each time: nothing was cut off.
            with pytest.raises(DamagedFileError, match="no crash does that"):
                AppendLog(directory)
        assert path.read_bytes() == whole


def test_damage_is_found_with_the_room_of_a_killed_writer_behind(
    tmp_path: Path,
) -> None:
    write(tmp_path, b"one", b"two" * 5_000, b"three")
    path = changed(tmp_path, 30, b"#")
    path.write_bytes(path.read_bytes() + bytes(1 << 18))
    with pytest.raises(DamagedFileError, match="but one does at byte 15029"):
        AppendLog(tmp_path)


def test_a_damaged_length_is_found_before_a_large_content(tmp_path: Path) -> None:
    """Of a content that looks like lengths all over, too."""
    numbers = b"".join(number.to_bytes(4, "little") for number in range(600_000))
    write(tmp_path, b"one", numbers, b"three")
    changed(tmp_path, 10 + 8 + 3 + 2, b"\xff")
    with pytest.raises(DamagedFileError, match="no crash does that"):
        AppendLog(tmp_path)


def test_what_a_crash_tore_is_logged_with_its_length(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, b"one", b"two" * 100)
    (path,) = tmp_path.glob("*.log")
    path.write_bytes(path.read_bytes()[:121] + bytes(1 << 18))
    with caplog.at_level("WARNING", "aiomailbox"):
        assert entries(tmp_path) == [b"one"]
        assert entries(tmp_path) == [b"one"]
    # The second time there is nothing left to be cut off; room alone is not logged.
    (line,) = caplog.records
    assert "torn" in line.getMessage()
    assert str(path) in line.getMessage()
    assert vars(line)["byte"] == 21
    assert vars(line)["length"] == 100


def test_a_page_that_a_loss_of_power_left_out_is_torn_and_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The pages of what was not synced reach the disk in any order."""
    written = [b"%03d" % number * 30 for number in range(300)]
    write(tmp_path, *written)
    changed(tmp_path, 4096, bytes(4096))
    with caplog.at_level("WARNING", "aiomailbox"):
        kept = entries(tmp_path)
    assert kept == written[: (4096 - 10) // 98]
    (line,) = caplog.records
    assert vars(line)["length"] == 10 + 300 * 98 - vars(line)["byte"]


def test_a_reader_does_not_take_a_writer_that_goes_on_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AppendLog(tmp_path)
    log.append_one(b"one")
    place = log.append_one(b"two")
    path = tmp_path / "000000000000.log"
    # As it is seen in the middle of the copy.
    whole = path.read_bytes()
    path.write_bytes(whole[: place + 9] + bytes(len(whole) - place - 9))
    search = LogSegment._whole_entry_behind

    def search_later(segment: LogSegment, end: int) -> int | None:
        path.write_bytes(whole)
        log.append_one(b"three")
        return search(segment, end)

    monkeypatch.setattr(LogSegment, "_whole_entry_behind", search_later)
    segment = LogSegment(tmp_path, 0)
    assert segment.check(is_last=True) == place + 2 * 8 + len(b"twothree")
    log.close()


def test_a_kill_in_the_middle_of_an_append_tears_no_entry_that_others_follow(
    tmp_path: Path,
) -> None:
    """Each entry is copied when the one before is whole."""
    log = AppendLog(tmp_path)
    seen: list[list[bytes]] = []

    class Watched:
        def __init__(self, mapped: Any) -> None:
            self.mapped = mapped

        def __setitem__(self, place: slice, content: bytes) -> None:
            seen.append([entry for _, entry in LogSegment(tmp_path, 0).entries()])
            self.mapped[place] = content

    mapped = log._mapped
    log._mapped = Watched(mapped)  # type: ignore[assignment]
    log.append([b"one", b"two", b"three"])
    log._mapped = mapped
    log.close()
    assert seen == [[], [b"one"], [b"one", b"two"]]


def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "000000000000.log").write_bytes(b"something else entirely")
    with pytest.raises(DamagedFileError, match="does not begin like a log"):
        AppendLog(tmp_path)


def test_a_full_disk_takes_no_half_of_an_append(tmp_path: Path) -> None:
    program = """
        import resource, signal, sys
        from aiomailbox.storage.append_log import AppendLog
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        log = AppendLog(sys.argv[1])
        log.append([b"a" * 50])
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))
        try:
            log.append([b"b" * 10, b"c" * (1 << 19)])
        except OSError:
            pass
        else:
            sys.exit("it fitted")
        try:
            log.append([b"d"])
            log.roll()
        finally:
            log.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    subprocess.run(command, check=True)
    assert entries(tmp_path) == [b"a" * 50, b"d"]


def test_what_was_synced_survives_a_kill(tmp_path: Path) -> None:
    program = """
        import os, sys
        from aiomailbox.storage.append_log import AppendLog
        log = AppendLog(sys.argv[1])
        for number in range(10**9):
            log.append([b"%d" % number])
            log.sync()
            os.write(1, b"%d\\n" % number)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for _ in range(50):
            child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        told = 50 + len(child.stdout.read().splitlines())
    kept = entries(tmp_path)
    assert kept[:told] == [b"%d" % number for number in range(told)]


@pytest.mark.parametrize("size", [0, 3, 1 << 18])
def test_a_segment_that_a_crash_left_before_its_first_byte_is_empty(
    tmp_path: Path, size: int
) -> None:
    """It had its name, and perhaps its room."""
    log = AppendLog(tmp_path)
    log.append([b"one"])
    log.close()
    (tmp_path / "000000000001.log").write_bytes(bytes(size))
    assert not [*LogSegment(tmp_path, 1).entries()]
    again = AppendLog(tmp_path)
    again.append([b"two"])
    again.close()
    assert [entry for _, entry in again.entries()] == [b"one", b"two"]


def test_zeros_in_place_of_the_beginning_are_damage_where_entries_follow(
    tmp_path: Path,
) -> None:
    first = first_of_two_segments(tmp_path)
    first.write_bytes(bytes(10) + first.read_bytes()[10:])
    with pytest.raises(DamagedFileError, match="no entry begins"):
        AppendLog(tmp_path)


def test_a_segment_grows_with_what_is_appended(tmp_path: Path) -> None:
    """The room that is reserved at a time is a small part of what it gets."""
    written = [bytes([number]) * 100_000 for number in range(20)]
    log = AppendLog(tmp_path)
    places = [log.append_one(each) for each in written[:10]]
    places += [log.append([each]) for each in written[10:]]
    segment = LogSegment(tmp_path, 0)
    assert [segment.entry_at(place) for place in places] == written
    log.close()
    assert entries(tmp_path) == written
    # What was reserved and not needed is given back.
    assert segment.path.stat().st_size == 10 + sum(8 + len(each) for each in written)


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left on device")


def test_a_full_disk_refuses_an_entry_and_nothing_else_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AppendLog(tmp_path)
    log.append_one(b"before")
    opened = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", refuse)
        for act in (
            lambda: log.append([b"small", bytes(1 << 20)]),
            lambda: log.append_one(bytes(1 << 20)),
            log.roll,
        ):
            with pytest.raises(OSError, match="no space left"):
                act()
        log.append_one(b"there is room for this")
    assert set(os.listdir("/proc/self/fd")) == opened
    assert log.segment == 0
    assert log.roll() == 1
    log.append_one(bytes(1 << 20))
    log.close()
    assert entries(tmp_path) == [b"before", b"there is room for this", bytes(1 << 20)]


def test_a_length_that_no_entry_has_ends_the_log_and_is_no_entry_at_its_place(
    tmp_path: Path,
) -> None:
    write(tmp_path, b"one", b"two")
    path = tmp_path / "000000000000.log"
    damaged = bytearray(path.read_bytes())
    place = 10 + 8 + len(b"one")
    damaged[place : place + 8] = b"\xff" * 8
    path.write_bytes(damaged)
    segment = LogSegment(tmp_path, 0)
    assert [*segment.entries()] == [(10, b"one")]
    assert segment.entry_at(10) == b"one"
    for nowhere in (place, 11, 1 << 20):
        with pytest.raises(DamagedFileError, match=f"no entry at byte {nowhere}"):
            segment.entry_at(nowhere)
