"""``python -m tests.scenarios``: which numbered scenarios have a test, and which do not.

A scenario is a behaviour that was written down, with a number, before the code was:
``MB`` of the mailbox, ``NET`` of the exchange of data, ``SEM`` of operators, windows,
state and time. A test names what it is about, in its docstring (``NET-31, NET-32.``) or
in its name (``test_net_31_...``). Only the numbers are kept here.

What no test names is either in ``untested_scenarios.toml`` with its reason (we do
otherwise on purpose, or the part of the engine is still to come), or printed as missing.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.sources import parsed

TESTS = Path(__file__).parent
UNTESTED = TESTS / "untested_scenarios.toml"

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
_SPAN = re.compile(r"(MB-D|MB|NET|SEM)-?(\d+)(?:-(\d+))?")


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


@dataclass(slots=True)
class Untested:
    """Which scenarios have no test for a reason.

    Attributes:
        different: The reason by scenario that we do not follow.
        waiting: By scenario what it waits for.
        twice: Scenarios with more than one reason: mistakes.
    """

    different: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)

    def __contains__(self, name: str) -> bool:
        return name in self.different or name in self.waiting


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


@cache
def collect(root: Path = TESTS) -> Coverage:
    """Read all tests below a directory without running them."""
    coverage = Coverage()
    for path in sorted(root.rglob("test_*.py")):
        tree = parsed(path)
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


def load_untested(path: Path = UNTESTED) -> Untested:
    """Read the scenarios without a test, and why."""
    untested = Untested()
    for kind, groups in tomllib.loads(path.read_text(encoding="utf-8")).items():
        reasons: dict[str, str] = getattr(untested, kind)
        for group in groups:
            for name in in_spans(group["scenarios"]):
                if name in untested:
                    untested.twice.append(name)
                reasons[name] = group["reason"]
    return untested


def in_spans(text: str) -> list[str]:
    """Return the scenarios of a list of spans.

    Example:
        >>> in_spans("NET-7-9, MB-D2")
        ['NET-7', 'NET-8', 'NET-9', 'MB-D2']
    """
    return [
        _name(family, number)
        for family, first, last in _SPAN.findall(text)
        for number in range(int(first), int(last or first) + 1)
    ]


def report(coverage: Coverage, untested: Untested) -> str:
    """Return tables: how many of each chapter have a test, and why the others do not."""
    lines = []
    for family, chapters in CHAPTERS.items():
        sums: Counter[str] = Counter()
        rows = []
        for title, (first, last) in chapters.items():
            counts: Counter[str] = Counter()
            unexplained = []
            for number in range(first, last + 1):
                found = _standing(_name(family, number), coverage, untested)
                counts[found] += 1
                if found == "missing":
                    unexplained.append(number)
            missing = f"   missing: {_spans(unexplained)}" if unexplained else ""
            rows.append(f"    {title:<32}{_counted(counts)}{missing}")
            sums += counts
        lines += [f"{family:<36}{_counted(sums)}", *rows]
    for kind in ("different", "waiting"):
        lines += ["", f"{kind}:", *_reasons(getattr(untested, kind))]
    if coverage.unknown:
        lines.append(f"no such scenario: {', '.join(coverage.unknown)}")
    return "\n".join(lines)


def _standing(name: str, coverage: Coverage, untested: Untested) -> str:
    if name in coverage.tests:
        return "tested"
    if name in untested.different:
        return "different"
    return "waiting" if name in untested.waiting else "missing"


def _counted(counts: Counter[str]) -> str:
    return (
        f"{counts['tested']:4} of {counts.total():3} tested"
        f"{counts['different']:5} different{counts['waiting']:5} to come"
    )


def _reasons(reasons: dict[str, str]) -> Iterator[str]:
    numbers: dict[tuple[str, str], list[int]] = {}
    for name, reason in reasons.items():
        ((family, number),) = _IN_TEXT.findall(name)
        numbers.setdefault((reason, family), []).append(int(number))
    for (reason, family), found in numbers.items():
        yield f"    {family:<5}{_spans(found):<30} {reason}"


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
    print(report(found, load_untested()))
    sys.exit(1 if found.unknown else 0)
