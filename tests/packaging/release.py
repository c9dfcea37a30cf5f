"""Checks a wheel and a source archive as a user gets them: alone, in new environments.

``python -m tests.packaging.release DIRECTORY`` takes the two files that are there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

# The core, and columns: what needs no Java.
PROGRAM = """
from pathlib import Path
import aiomailbox as am

async def double(number):
    return 2 * number

async def main():
    env = am.StreamExecutionEnvironment(parallelism=2)
    numbers = env.from_collection(range(100)).map_async(double)
    totals = numbers.key_by(lambda n: n % 3).full_window_partition()
    print(sum(await totals.reduce(lambda a, b: a + b).collect()))

if __name__ == "__main__":
    am.run(main())
    print(am.__version__, Path(am.__file__).parent)
"""
COLUMNS = """
import pyarrow as pa
import aiomailbox as am
env = am.StreamExecutionEnvironment()
table = env.from_arrow(pa.table({"n": [1, 2, 2]}))
counts = table.key_by("n").full_window_partition().aggregate(am.count())
print(sorted(am.run(counts.collect())))
"""


def run(*command: object, cwd: Path) -> str:
    """Run a command far from the checkout, and return what it prints."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        check=False,
        cwd=cwd,
        env=environ,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def check_contents(wheel: Path, source: Path) -> None:
    """Compare the files of both with those of the checkout."""
    package = ROOT / "aiomailbox"
    mine = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    code = {name for name in names if name.startswith("aiomailbox/")}
    expect(code == mine, f"the wheel differs: {sorted(code ^ mine)}")
    rest = {name.partition("/")[0] for name in names - code}
    expect(all(name.endswith(".dist-info") for name in rest), f"beside it: {rest}")
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    wanted = mine | {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"}
    expect(wanted <= held, f"the source archive lacks {sorted(wanted - held)}")


def check_installed(archive: Path, place: Path, version: str) -> None:
    """Install one of them in a new environment, and use it there."""
    uv = (sys.executable, "-m", "uv")
    venv, python = place / "venv", place / "venv" / "bin" / "python"
    run(*uv, "venv", "-q", "--python", sys.executable, venv, cwd=place)
    run(*uv, "pip", "install", "-q", "--python", python, archive, cwd=place)
    (place / "program.py").write_text(PROGRAM, "utf-8")
    total, told = run(python, "program.py", cwd=place).splitlines()
    expect(total == "9900", f"the program printed {total}")
    found, _, where = told.partition(" ")
    expect(found == version, f"it says it is {found}, and is {version}")
    expect(Path(where).is_relative_to(venv), f"it was imported from {where}")
    script = subprocess.run(
        [venv / "bin" / "aiomailbox"], capture_output=True, check=False, text=True
    )
    expect("[cli]" in script.stderr, f"aiomailbox says {script.stderr}")
    extras = f"{archive}[arrow,cli,processes]"
    run(*uv, "pip", "install", "-q", "--python", python, extras, cwd=place)
    shown = run(venv / "bin" / "aiomailbox", "--help", cwd=place)
    expect("run" in shown, f"aiomailbox --help says {shown}")
    expect(run(python, "-c", COLUMNS, cwd=place) == "[1, 2]\n", "columns differ")


def expect(holds: bool, otherwise: str) -> None:
    """End with a message if something does not hold."""
    if not holds:
        raise SystemExit(otherwise)


def main(directory: Path) -> None:
    """Check the one wheel and the one source archive of a directory."""
    (wheel,), (source,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    check_contents(wheel, source)
    for archive in (wheel, source):
        with tempfile.TemporaryDirectory() as place:
            check_installed(archive.absolute(), Path(place), project["version"])
        print(f"{archive.name} works")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
