"""The example that labels a DataFrame of texts, killed on its way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aiomailbox.connectors.spark.session import ensure_java

pytestmark = [pytest.mark.spark, pytest.mark.real_time]

# Two of these have no words.
ROWS, WITHOUT_WORDS = 800, 2
TOKENS_PER_MINUTE = 600_000


@pytest.mark.parametrize(("mode", "kills"), [("embedded", 1), ("applied", 1)])
async def test_each_text_is_labelled_once(
    load_example: Any, tmp_path: Path, mode: str, kills: int
) -> None:
    ensure_java()
    example = load_example("spark_llm_enrichment")
    model, found = await example.run(
        mode, tmp_path / mode, ROWS, TOKENS_PER_MINUTE, kills=kills
    )
    labelled = ROWS - WITHOUT_WORDS
    assert found == {"rows": labelled, "ids": labelled, "dead_letters": WITHOUT_WORDS}
    assert len(model.answered) == labelled
    # Only what was under way at the kill, in each of two workers.
    assert len(model.asked_again) <= kills * 2 * example.CONCURRENCY
    assert {400, 429, 500, "hangs"} <= set(model.statuses)
