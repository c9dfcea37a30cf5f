"""``python -m tests.scenarios``: which numbered scenarios have a test, and which do not.

A scenario is a behaviour that was written down, with a number, before the code was:
``MB`` of the mailbox, ``NET`` of the exchange of data, ``SEM`` of operators, windows,
state and time. A test names what it is about, in its docstring (``NET-31, NET-32.``) or
in its name (``test_net_31_...``). Only the numbers are kept here.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).parent

# Family and chapter: the first and the last number.
CHAPTERS = {
    "MB": {"Mailbox, processor, task": (1, 132)},
    "MB-D": {"Derived from the code": (1, 4)},
    "NET": {
        "Availability, segments, buffers": (1, 9),
        "Builder and consumer": (10, 19),
        "Network pool": (20, 35),
        "Pool sizes": (36, 48),
        "Local pool": (49, 68),
        "Record writer, partition": (69, 83),
        "Framing": (84, 90),
        "Subpartition": (91, 113),
        "Gates": (114, 135),
        "Local channel": (136, 142),
        "Remote channel, credit": (143, 160),
        "Client, server, wire": (161, 183),
        "Debloating": (184, 189),
    },
    "SEM": {"Operators, windows, state, time": (1, 260)},
}

_IN_TEXT = re.compile(r"\b(MB-D|MB|NET|SEM)-?0*(\d+)\b")
_IN_NAME = re.compile(r"^test_((?:(?:mb|net|sem)_\d+_)+)")
_NAME_PART = re.compile(r"(mb|net|sem)_(\d+)_")


@dataclass(slots=True)
class Coverage:
    """Which tests name which scenario.

    Attributes:
        tests: Places as ``path::test`` by scenario, such as ``NET-31``.
    """

    tests: dict[str, list[str]] = field(default_factory=dict)

    def add(self, scenario: str, place: str) -> None:
        """Note that a test names a scenario."""
        self.tests.setdefault(scenario, []).append(place)

    @property
    def unknown(self) -> list[str]:
        """Names of scenarios that do not exist: misprints."""
        known = set(scenarios())
        return sorted(name for name in self.tests if name not in known)

    def missing(self, family: str, first: int, last: int) -> list[int]:
        """Return the numbers that no test names."""
        return [
            number
            for number in range(first, last + 1)
            if _name(family, number) not in self.tests
        ]


def scenarios() -> Iterator[str]:
    """Yield the name of every scenario."""
    for family, chapters in CHAPTERS.items():
        for first, last in chapters.values():
            for number in range(first, last + 1):
                yield _name(family, number)


def named_in(text: str) -> list[str]:
    """Return the scenarios that a docstring names.

    Example:
        >>> named_in("NET-31, MB-D2: nothing else; SEM-07.")
        ['NET-31', 'MB-D2', 'SEM-7']
    """
    return [_name(family, int(number)) for family, number in _IN_TEXT.findall(text)]


def named_by(name: str) -> list[str]:
    """Return the scenarios that the name of a test says.

    Example:
        >>> named_by("test_net_31_net_32_a_wait_ends")
        ['NET-31', 'NET-32']
    """
    found = _IN_NAME.match(name)
    if found is None:
        return []
    parts = _NAME_PART.findall(found.group(1))
    return [_name(family.upper(), int(number)) for family, number in parts]


def collect(root: Path = TESTS) -> Coverage:
    """Read all tests below a directory without running them."""
    coverage = Coverage()
    for path in sorted(root.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
            ):
                continue
            is_test = node.name.startswith("test_") or isinstance(node, ast.ClassDef)
            if is_test:
                place = f"{path.relative_to(root)}::{node.name}"
                text = ast.get_docstring(node) or ""
                for scenario in dict.fromkeys(named_by(node.name) + named_in(text)):
                    coverage.add(scenario, place)
    return coverage


def report(coverage: Coverage) -> str:
    """Return a table: how many of each chapter have a test, and which do not."""
    lines = []
    for family, chapters in CHAPTERS.items():
        total = tested = 0
        rows = []
        for title, (first, last) in chapters.items():
            missing = coverage.missing(family, first, last)
            count = last - first + 1
            total, tested = total + count, tested + count - len(missing)
            without = f"   without: {_spans(missing)}" if missing else ""
            rows.append(f"    {title:<32}{count - len(missing):>4} of {count}{without}")
        lines += [f"{family:<8}{tested} of {total} scenarios have a test", *rows]
    if coverage.unknown:
        lines.append(f"no such scenario: {', '.join(coverage.unknown)}")
    return "\n".join(lines)


def _name(family: str, number: int) -> str:
    return f"{family}{number}" if family == "MB-D" else f"{family}-{number}"


def _spans(numbers: list[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ", ".join("-".join(map(str, span)) for span in spans)


if __name__ == "__main__":
    found = collect()
    print(report(found))
    sys.exit(1 if found.unknown else 0)
