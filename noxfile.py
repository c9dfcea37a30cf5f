"""One command per question that a reviewer asks."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nox

nox.needs_version = ">=2026.4"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_external_run = True
nox.options.sessions = ["lint", "types", "layers", "docs", "tests"]

# Spark listens to this machine only. And whatever the caller's shell says, compiled
# modules are kept: hundreds of worker processes are started, and would compile them all.
ENV = {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONDONTWRITEBYTECODE": None}
# A Spark of tests lives for seconds: most of its time would go into optimizing what it
# compiled once, and into threads of its collector (measured: half of its processor time).
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
PEERS = ["bytewax", "streamz", "duckdb"]
# Two workers, whatever the machine: the suite measures time. Each gets whole files, and
# one of them all that have tests of Spark, so that there is one session.
PARALLEL = ["-n", "2", "--dist", "loadfile"]
# In memory, if there is room: tests write small files, and a disk's waits for each sync
# took a fifth of the time of those that check state and checkpoints. What passed leaves
# nothing there.
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 8 * 1024**3
KEPT = ["-o", "tmp_path_retention_policy=failed"]
FUZZED = ["wire", "server", "client", "element", "value", "event", "records"]
# What every Python has to pass: all but what starts Spark, programs, databases or
# browsers, and what is no different on another Python, as columns, which Arrow and numpy
# compute, and RocksDB. Those run on one, with `tests`; so do more examples of a property
# than a few.
ON_ONE_PYTHON = [
    "api/test_field_names.py", "api/test_logging.py", "architecture", "benchmarks", "cli",
    "columnar", "conformance/test_runner.py", "connectors/exactly_once",
    "connectors/spark", "connectors/sql", "connectors/test_parquet.py",
    "connectors/test_parquet_commit.py", "connectors/test_parquet_partitions.py",
    "connectors/test_redis_sink.py", "crash", "docs", "examples", "fuzz",
    "observe/test_dashboard.py", "packaging", "runtime/processes",
    "runtime/test_finished_calls.py", "simulation", "test_scenarios.py", "typing",
]  # fmt: skip
STARTED_OR_COMPILED = ["columnar", "rocksdb", "from_disk", "processes", "its_process"]
ON_OTHER_PYTHONS = [
    *("-k", f"not ({' or '.join(STARTED_OR_COMPILED)})"),
    *("--hypothesis-profile", "few"),
    *KEPT,
]
# Whether this is a session that nox runs beside others, and was asked to give way (`.ci/run`
# says which are): each of those leads a session of the system, too.
GIVES_WAY = "GIVES_WAY" in os.environ and os.getsid(0) == os.getpid()
# How much less of the processor it asks for: about a tenth of it while others want all.
LESS = 10
# What gets so little hangs no sooner.
PATIENT = ["-o", "timeout=1200"]
LOOK_FOR_ATHERIS = (
    "import importlib.util as u; print(u.find_spec('atheris') is not None)"
)
# Loads what Sparks of tests need, and waits until its Java has written that down.
LOAD_CLASSES = """
import tempfile
from aiomailbox.connectors.spark import local_session
spark = local_session("classes")
java = spark.sparkContext._gateway.proc
with tempfile.TemporaryDirectory() as place:
    rows = spark.range(100).selectExpr("id", "id % 7 AS key", "string(id) AS text")
    rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet(f"{place}/in")
    read = spark.readStream.schema(rows.schema).parquet(f"{place}/in")
    written = read.writeStream.option("checkpointLocation", f"{place}/log")
    query = written.trigger(availableNow=True).start(f"{place}/out", format="parquet")
    query.awaitTermination()
    sums = spark.read.parquet(f"{place}/out").groupBy("key").count()
    sums.orderBy("key").toPandas()
spark.stop()
java.stdin.close()
java.wait()
"""
LOOK_FOR_JAVA = """
from aiomailbox.connectors.spark.session import find_java
from aiomailbox.errors import JavaNotFoundError
try:
    java = find_java()
    print(f"found: Java {java.version} in {java.path}")
except JavaNotFoundError as error:
    print(error)
"""


def give_way() -> None:
    """Leave the processor to those that measure time, if they want it.

    Linux weighs processes within a session of the system by their own value, and one
    session against another by this file, where it groups them so.
    """
    os.nice(LESS)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(LESS))


if GIVES_WAY:
    give_way()


@nox.session
def lint(session: nox.Session) -> None:
    """Is it formatted and free of known mistakes?"""
    session.install("--group", "lint")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Do the types hold, here and for a user under either checker?"""
    extras = "spark,storage,dashboard,prometheus"
    take_built_spark(session)
    session.install("-e", f".[{extras}]", "--group", "types", "--group", "examples")
    session.run("mypy")
    # By what it has found out about the library.
    theirs = ("--exclude=notebook.py", "tests/typing/idioms", "examples")
    session.run("mypy", "--explicit-package-bases", *theirs)
    Path("build").mkdir(exist_ok=True)
    notebook = "build/notebook.ipynb"
    session.run("jupytext", "--to", "ipynb", "-o", notebook, "examples/notebook.py")
    # It comes as a wheel with all it needs, and asks nobody anything. How strictly it
    # checks, and what if it is not told, is in pyproject.toml: idioms and examples.
    # It would look into `.venv`, where only nox is.
    here = ("--pythonpath", f"{session.bin}/python")
    session.run("basedpyright", *here, "tests/typing/idioms", "examples", notebook)


@nox.session
def layers(session: nox.Session) -> None:
    """Do imports still point downward? (It prints which modules eight walks enter.)"""
    session.install("-e", ".[processes]", "--group", "layers")
    session.run("lint-imports", "--no-logo")
    session.run("python", "docs/walks.py")


@nox.session
def tests(session: nox.Session) -> None:
    """Does it work? Laws, and each real part once. (What follows -- goes to pytest.)"""
    prepare(session, "test")
    which = session.posargs or ["--suite", "tests"]
    env = short_lived(session, are_many="system" in which)
    with files_in_memory() as place:
        session.run("pytest", *PARALLEL, *KEPT, *which, env={**env, **place})


@nox.session(venv_backend="none")
def system(session: nox.Session) -> None:
    """Does it hold? Kills, simulations, all of Spark, every example. (-- as `tests`)"""
    # In the environment of that session: to install one takes a minute.
    which = session.posargs or ["--suite", "system", "tests"]
    tests = (sys.executable, "-m", "nox", "-s", "tests", "--")
    session.run(*tests, *which, external=True)


MINORS = [minor for minor in (11, 12, 13, 14) if minor != sys.version_info.minor]


def find_python(minor: int) -> str | None:
    """Return the path of a Python of this machine, None if there is none."""
    name = f"python3.{minor}"
    pyenv = Path.home() / ".pyenv"
    kept = sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python"))
    if kept:
        return str(kept[-1])
    on_path = shutil.which(name)
    # What pyenv puts on the path starts nothing where no version is chosen.
    return None if on_path and on_path.startswith(str(pyenv)) else on_path


@nox.session
@nox.parametrize("minor", [nox.param(minor, id=f"3.{minor}") for minor in MINORS])
def pythons(session: nox.Session, minor: int) -> None:
    """Do the laws hold on another Python of this machine? (All that starts nothing.)"""
    path, place = find_python(minor), f"{session.virtualenv.location}/there"
    if path is None:
        session.skip(f"There is no Python 3.{minor} here.")
    python = f"{place}/bin/python"
    session.run("uv", "venv", "-q", "--allow-existing", "--python", path, place)
    take_built_spark(session, "--python", python)
    wanted = ("-e", ".[spark]", "--group", "test")
    install = ("uv", "pip", "install", "-q", "--python", python, *wanted)
    session.run(*install, success_codes=[0, 1, 2])
    look = (python, "-c", "import aiomailbox, hypothesis; print('installed')")
    answer = session.run(
        *look, silent=True, log=False, external=True, success_codes=[0, 1]
    )
    if "installed" not in str(answer):
        session.skip(f"There is not all that tests need for Python 3.{minor}.")
    left_out = [f"--ignore=tests/{name}" for name in ON_ONE_PYTHON]
    options = ["-p", "no:cacheprovider", "--suite", "tests", *left_out]
    # Beside another session one process is enough, and nothing is collected twice.
    workers = [] if session.parallel else PARALLEL
    patience = PATIENT if GIVES_WAY else []
    options += [*ON_OTHER_PYTHONS, *workers, *patience, *session.posargs]
    with files_in_memory() as memory:
        env = {**ENV, **memory, "AIOMAILBOX_PIPELINES": "few"}
        session.run(python, "-m", "pytest", *options, env=env, external=True)


@nox.session
def coverage(session: nox.Session) -> None:
    """Which lines and branches does no test run? (92 % at least; 40 minutes)

    What was measured is kept: ``-- --more tests/api`` adds a part to what there is.
    """
    prepare(session, "coverage")
    arguments, place = list(session.posargs), Path("build/coverage").absolute()
    if "--more" in arguments:
        arguments.remove("--more")
    else:
        shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True, exist_ok=True)
    # Absolute, for the programs that tests start elsewhere.
    env = {**short_lived(session), "COVERAGE_FILE": str(place / ".coverage")}
    options = [*PARALLEL, "-o", "timeout=600"]
    tests = ("coverage", "run", "-m", "pytest", *options, *arguments)
    # It takes longer than the tests that measure time have: what fails is told, and what
    # was measured is counted.
    session.run(*tests, env=env, success_codes=[0, 1])
    # A file that a program was writing when it was killed is passed over.
    session.run("coverage", "combine", "-q", "--keep", env=env)
    limit = ("--fail-under=0",) if session.posargs else ()
    session.run("coverage", "report", *limit, env=env)


@nox.session
def soak(session: nox.Session) -> None:
    """Does it go on working, in the memory it has? (10 minutes; -- --minutes 2)"""
    session.install("-e", ".", "--group", "test")
    minutes = [] if "--minutes" in session.posargs else ["--minutes", "10"]
    options = ["-m", "soak", "-s", *minutes]
    session.run("pytest", "tests/runtime", *options, *session.posargs, env=ENV)


@nox.session
def simulation(session: nox.Session) -> None:
    """Is each record committed once, whatever fails? (2,000 seeds; -- -k tumbling)"""
    session.install("-e", ".", "--group", "test")
    options = [*PARALLEL[:2], "--show-capture=no"]
    env = {"AIOMAILBOX_SEEDS": "2000", **ENV}
    names = ["simulation", "mutations"]
    tests = [f"tests/simulation/test_{name}.py" for name in names]
    session.run("pytest", *tests, *options, *session.posargs, env=env)


@nox.session
def pipelines(session: nox.Session) -> None:
    """Do 2,000 recorded pipelines do what Flink's did, also stopped and resumed?"""
    session.install("-e", ".", "--group", "test")
    options = [*PARALLEL[:2], "--show-capture=no"]
    env = {**ENV, "AIOMAILBOX_PIPELINES": "all"}
    tests = [f"tests/conformance/test_{name}.py" for name in ("pipelines", "machinery")]
    with files_in_memory() as place:
        session.run("pytest", *tests, *options, *session.posargs, env={**env, **place})


@nox.session
def cluster(session: nox.Session) -> None:
    """Does it work where Spark's executors are processes of their own, and die?"""
    prepare(session, "test")
    tests = "tests/connectors/spark/test_local_cluster.py"
    options = ["--local-cluster"]
    session.run("pytest", tests, *options, *session.posargs, env=ENV)


@nox.session
def browser(session: nox.Session) -> None:
    """Does the page of a job look right, and go on, in a real Chromium?

    (Screenshots go to docs/pictures with AIOMAILBOX_PICTURES=1.)
    """
    prepare(session, "test")
    tests = ["tests/observe", "tests/examples"]
    options = ["-m", "browser", "--browser", "-s"]
    session.run("pytest", *tests, *options, *session.posargs, env=ENV)


@nox.session
def memory(session: nox.Session) -> None:
    """Do 20 million rows of a DataFrame fit through 1 GiB of JVM and 300 MiB of ours?"""
    prepare(session, "test")
    tests = "tests/connectors/spark/test_memory.py"
    options = ["--spark-memory", "-s"]
    session.run("pytest", tests, *options, *session.posargs, env=ENV)


@nox.session
def crash(session: nox.Session) -> None:
    """Kill programs, workers and databases at random moments, 30 times over."""
    prepare(session, "test")
    session.env.setdefault("AIOMAILBOX_CRASHES", "30")
    options = ["-q", "-s", "-p", "no:randomly"]
    session.run("pytest", *options, "tests/crash", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Can bytes of strangers break it? (A minute a target; -- 600 client server)"""
    session.install("-e", ".", "--group", "test")
    session.install("atheris", success_codes=[0, 1, 2])
    found = session.run("python", "-c", LOOK_FOR_ATHERIS, silent=True, log=False)
    if "True" not in str(found):
        session.skip("There is no atheris for this Python or system.")
    seconds, *targets = session.posargs or ["60"]
    for target in targets or FUZZED:
        directory = session.create_tmp()
        session.run("python", "-m", "tests.fuzz", target, seconds, directory)


@nox.session
def examples(session: nox.Session) -> None:
    """Does every example run?"""
    prepare(session, "test")
    session.run("pytest", "tests/examples", *session.posargs, env=short_lived(session))


@nox.session
def demo(session: nox.Session) -> None:
    """What is it for? (Flight delays from Spark, in at most 90 seconds.)"""
    prepare(session, "examples")
    session.run("python", "examples/flight_delays.py", *session.posargs, env=ENV)


@nox.session
def bench(session: nox.Session) -> None:
    """How fast is it, beside a plain loop and its peers? (-- --json FILE)"""
    prepare(session, "test")
    for peer in PEERS:
        # A peer that cannot be installed here is left out of the table.
        session.install(peer, success_codes=[0, 1, 2])
    session.run("python", "-m", "tests.benchmarks", *session.posargs, env=ENV)


@nox.session
def docs(session: nox.Session) -> None:
    """Do the docs build without a warning?"""
    session.install("-e", ".", "--group", "docs")
    jobs = "1" if session.parallel else "2"
    options = ["-j", jobs, "-q", "-W", "--keep-going"]
    session.run("sphinx-build", *options, "docs", "docs/_build/html")


@nox.session
def release(session: nox.Session) -> None:
    """Do the wheel and the source archive work, each alone in a clean environment?

    They are left in ``dist``; nothing is uploaded.
    """
    session.install("hatchling >= 1.27", "uv >= 0.8")
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel")
    session.run("python", "-m", "tests.packaging.release", "dist")


def take_built_spark(session: nox.Session, *into: str) -> None:
    """Install the Spark that `tests` has built, if it did: each build takes 20 seconds.

    Where an index says of nothing how long it holds, uv builds it anew.
    """
    if session.venv_backend == "uv":
        built = (
            "uv",
            "pip",
            "install",
            "-q",
            "--offline",
            *into,
            "pyspark >= 4.1, < 5",
        )
        session.run(*built, silent=True, success_codes=[0, 1, 2])


def prepare(session: nox.Session, group: str) -> None:
    """Install the package, Spark, a dependency group and, if there is none, a Java."""
    session.install("-e", ".[spark]", "--group", group)
    if not has_java(session):
        session.install("-e", ".[java]")
        if not has_java(session):
            session.error("Spark needs Java 17 or newer; see above.")


@contextmanager
def files_in_memory() -> Iterator[dict[str, str]]:
    """Yield the environment of tests that have their temporary files in memory.

    They are in a directory of their own, which goes when the tests have passed.
    """
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < MEMORY_BYTES_MIN:
        yield {}
        return
    # Short: Unix sockets are in there.
    place = tempfile.mkdtemp(prefix="t-", dir=MEMORY)
    # Others pass through: a database that root starts runs as another user.
    Path(place).chmod(0o711)
    yield {"TMPDIR": place}
    shutil.rmtree(place, ignore_errors=True)


def short_lived(
    session: nox.Session, *, are_many: bool = True
) -> dict[str, str | None]:
    """Return the environment of tests: their Sparks share what the first has loaded.

    Some 30 are started one after another. Reading and checking 20,000 classes from jars
    is half of what a start costs (10 s of processor time; 5 s with the archive, which
    takes half a minute: for a few it is used if it is there).
    """
    archive = Path(session.virtualenv.location).absolute() / "spark.jsa"
    if are_many and not archive.exists():
        options = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={archive}"
        dump = {**ENV, "SPARK_SUBMIT_OPTS": options}
        load = ("python", "-c", LOAD_CLASSES)
        # Without an archive everything works as well, also if a signal ended Java.
        ends = range(-64, 256)
        session.run(*load, env=dump, silent=True, log=False, success_codes=ends)
    # Another Java, or other jars, pass an archive over; they would say so on stdout.
    shared = f" -XX:SharedArchiveFile={archive} -Xlog:disable"
    found = shared if archive.exists() else ""
    return {**ENV, "SPARK_SUBMIT_OPTS": SHORT_LIVED + found}


def has_java(session: nox.Session) -> bool:
    """Say whether Spark can be started, and with which Java."""
    answer = session.run("python", "-c", LOOK_FOR_JAVA, silent=True, log=False, env=ENV)
    session.log(str(answer).strip())
    return str(answer).startswith("found")
