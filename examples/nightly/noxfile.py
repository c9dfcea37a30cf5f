"""Sessions for nox: the job of the night, and its test before each change."""

from __future__ import annotations

import nox

nox.options.sessions = ["check"]


@nox.session
def nightly(session: nox.Session) -> None:
    """Run the job: ``nox -s nightly -- orders.csv out/totals``."""
    install(session)
    # The session fails if the job does: cron, systemd or CI see the exit code.
    session.run("python", "orders.py", *session.posargs)


@nox.session
def check(session: nox.Session) -> None:
    """Test the job on virtual time, and show its graph."""
    install(session)
    session.run("python", "-m", "pytest", "-q", "check_orders.py", *session.posargs)
    session.run("python", "-m", "aiomailbox", "explain", "check_orders:described")


def install(session: nox.Session) -> None:
    """Install the library from a checkout of it; with --no-venv it is there already."""
    if session.virtualenv.is_sandboxed:
        session.install("../..[cli]", "pytest", "pytest-asyncio")
