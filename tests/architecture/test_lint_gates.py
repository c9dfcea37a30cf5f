"""The linter finds what it is there for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUFF = Path(sys.executable).parent / "ruff"

HEADER = '"""A module."""\n\nfrom __future__ import annotations\n\n'
PLANTED = {
    "a wall clock": "import time\n\nnow = time.time()\n",
    "a sleep": "import time\n\ntime.sleep(1)\n",
    "a free task": "import asyncio\n\n\nasync def f():\n    asyncio.create_task(f())\n",
    "pickle": "import pickle\n",
    "a relative import": "from . import clock\n",
    "a public function without a docstring": "def public():\n    return 1\n",
    "a bare noqa": "import os  # noqa\n",
    "code in a comment": "# print(1)\n",
    "a print": "print(1)\n",
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED.keys())
def test_the_linter_finds(planted: str) -> None:
    done = subprocess.run(
        [RUFF, "check", "--stdin-filename", "aiomailbox/planted.py", "-"],
        capture_output=True,
        cwd=ROOT,
        input=HEADER + planted,
        text=True,
    )
    assert done.returncode == 1, done.stdout
