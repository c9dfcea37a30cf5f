"""The page about tuning knows every setting."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import aiomailbox as am

PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"


def test_every_setting_of_a_job_is_explained_and_no_other() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {field.name for field in dataclasses.fields(am.JobConfig)}
