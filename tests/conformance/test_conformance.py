"""Flink 2.3.0's behaviour, as recorded: every case of every file, one test each."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest


def test_each_file_has_an_adapter_or_waits_for_its_module(vector_file: Any) -> None:
    assert not vector_file.problems, "; ".join(vector_file.problems)


def test_flink_2_3_0(vector_case: Any, vector_results: dict[str, Counter[str]]) -> None:
    counts = vector_results[vector_case.file.name]
    counts["run"] += 1
    try:
        if vector_case.reason is None:
            vector_case.run()
            return
        counts["deliberate"] += 1
        with pytest.raises(Exception):  # noqa: B017 -- any difference is one
            vector_case.run()
    except BaseException:
        counts["failed"] += 1
        raise
