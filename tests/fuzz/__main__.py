"""Fuzz one target, guided by coverage: ``python -m tests.fuzz TARGET [SECONDS [DIR]]``.

What atheris finds of interest stays in the directory, and is where its next run begins;
an input that breaks a law is written there as ``crash-...``. Make a test of it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["aiomailbox"]):
    from tests.fuzz.targets import INPUT_BYTES_MAX, SEEDS, TARGETS

# What one input may take at most, and all of the process.
TIMEOUT_S = 10
MEMORY_MIB = 1024


def main(name: str, seconds: str = "60", directory: str | None = None) -> None:
    """Run a target for so long; does not return."""
    corpus = Path(directory or tempfile.mkdtemp(prefix="fuzz-")) / name
    corpus.mkdir(exist_ok=True)
    for number, seed in enumerate(SEEDS[name]):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-timeout={TIMEOUT_S}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-artifact_prefix={corpus}/",
    ]
    atheris.Setup([sys.argv[0], str(corpus), *options], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
