"""The page about tuning knows every setting."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import aiomailbox as am

PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"
UNITS = {"ms": "milliseconds", "s": "seconds"}


def test_every_setting_of_a_job_is_explained_and_no_other() -> None:
    assert set(settings()) == {field.name for field in dataclasses.fields(am.JobConfig)}


def test_the_defaults_are_those_of_the_code() -> None:
    config = am.JobConfig()
    for name, default in settings().items():
        value = getattr(config, name)
        if isinstance(value, timedelta):
            number, unit = default.split(" ")
            value, default = value / timedelta(**{UNITS[unit]: 1}), float(number)
        elif isinstance(value, str | Mapping):
            value = f"`{json.dumps(value)}`"
        elif value is not None and not isinstance(value, bool | int | float):
            value = type(value).__name__
        assert str(default) == str(value), name


def test_every_argument_of_checkpointing_is_explained_and_no_other() -> None:
    arguments = inspect.signature(am.StreamExecutionEnvironment.enable_checkpointing)
    _, section = PAGE.read_text("utf-8").split("## Checkpoints\n")
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(arguments.parameters) - {"self"}


def settings() -> dict[str, str]:
    """Return the settings that the page explains, with their defaults."""
    _, section = PAGE.read_text("utf-8").split("## Settings of a job\n")
    section, _ = section.split("## Checkpoints\n")
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE))
