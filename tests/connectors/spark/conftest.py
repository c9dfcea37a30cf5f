"""What tests of Spark ask Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def no_job(spark: Any) -> Iterator[None]:
    """Fail the test if Spark has started a job meanwhile, by its scheduler's count."""
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    before = scheduler.numTotalJobs()
    yield
    assert scheduler.numTotalJobs() == before, "a job was started"
