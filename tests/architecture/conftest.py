from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.sources import parsed

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def package() -> Path:
    return ROOT / "aiomailbox"


@pytest.fixture(scope="session")
def trees(package: Path) -> dict[str, ast.Module]:
    """Give the syntax tree of each module, by its path inside the repository."""
    return {
        str(path.relative_to(ROOT)): parsed(path)
        for path in sorted(package.rglob("*.py"))
    }
