"""What is sent to executors is enough to run a stage there."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from aiomailbox.connectors.spark.session import ship_library

# Compiled, or brought by Spark's workers: these have to be installed there.
INSTALLED = ["cloudpickle", "msgspec", "numpy", "pandas", "pyarrow", "pyspark", "py4j"]
SUPPORT = ["numpy.libs", "dateutil", "pytz", "tzdata", "six.py"]


class Session:
    """Takes the artifact, as a session would."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def addArtifacts(self, path: str, *, pyfile: bool) -> None:  # noqa: N802 -- Spark's name
        assert pyfile
        shutil.copy(path, self.place)


def bare_packages(place: Path) -> Path:
    """Return a directory that has what a worker must have, and not the library."""
    installed = place / "installed"
    installed.mkdir()
    found = importlib.util.find_spec("pyarrow")
    assert found is not None
    assert found.origin is not None
    packages = Path(found.origin).parents[1]
    for name in [*INSTALLED, *SUPPORT]:
        if (packages / name).exists():
            (installed / name).symlink_to(packages / name)
    return installed


def test_a_worker_without_the_library_can_import_it_from_the_archive(
    tmp_path: Path,
) -> None:
    ship_library(Session(tmp_path))
    [archive] = tmp_path.glob("*.zip")
    installed = bare_packages(tmp_path)
    program = (
        f"import sys; sys.path[:0] = [{str(archive)!r}, {str(installed)!r}]\n"
        "from aiomailbox.connectors.spark.inside.stage import run_stage\n"
        "import aiomailbox; print(aiomailbox.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith(str(archive))
