from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def package() -> Path:
    return ROOT / "aiomailbox"


@pytest.fixture(scope="session")
def trees(package: Path) -> dict[str, ast.Module]:
    """Give the syntax tree of each module, by its path inside the repository."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(package.rglob("*.py"))
    }
