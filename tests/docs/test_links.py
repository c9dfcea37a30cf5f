"""Names in code on the pages lead to the reference: what users call is named on some page."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import aiomailbox as am

DOCS = Path(__file__).parents[2] / "docs"
CLASSES = [
    am.StreamExecutionEnvironment,
    am.DataStream,
    am.KeyedStream,
    am.WindowedStream,
    am.JobClient,
    am.WatermarkStrategy,
]
# What the library calls itself.
OURS = {
    "WatermarkStrategy.alignment",
    "WatermarkStrategy.assigner",
    "WatermarkStrategy.create_assigner",
    "WatermarkStrategy.create_generator",
    "WatermarkStrategy.has_own_generator",
    "WatermarkStrategy.idleness_ms",
}


def load_candidates() -> Callable[..., list[str]]:
    """Load the function by which the documentation links names."""
    spec = importlib.util.spec_from_file_location("names", DOCS / "names.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    candidates: Callable[..., list[str]] = module.candidates
    return candidates


candidates = load_candidates()


@pytest.fixture(scope="module")
def named() -> set[str]:
    """Return all that code in the text of the pages may mean."""
    pages = {
        page.relative_to(DOCS).with_suffix("").as_posix(): page.read_text("utf-8")
        for page in DOCS.rglob("*.md")
        if page.parent.name != "api" and "_build" not in page.parts
    }
    return {
        name
        for docname, text in pages.items()
        for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
        for name in candidates(code, docname)
    }


@pytest.mark.parametrize("owner", CLASSES, ids=lambda owner: owner.__name__)
def test_what_users_call_is_explained_on_a_page(owner: type, named: set[str]) -> None:
    public = [name for name in vars(owner) if not name.startswith("_")]
    own = {f"{owner.__name__}.{name}" for name in public} - OURS
    assert not {name for name in own if f"aiomailbox.{name}" not in named}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("map_async", "aiomailbox.DataStream.map_async"),
        ("await stream.collect()", "aiomailbox.DataStream.collect"),
        ("records = await stream.collect()", "aiomailbox.DataStream.collect"),
        (
            'async with env.start("job") as job:',
            "aiomailbox.StreamExecutionEnvironment",
        ),
        (
            "env.enable_checkpointing(am.seconds(10))",
            "aiomailbox.StreamExecutionEnvironment",
        ),
        ("am.RateLimit(10, per=1)", "aiomailbox.RateLimit"),
        ("job.stop(drain=False)", "aiomailbox.JobClient.stop"),
        ("JobConfig", "aiomailbox.JobConfig"),
        (".allowed_lateness(...)", "aiomailbox.WindowedStream.allowed_lateness"),
    ],
)
def test_code_leads_to_what_it_names(code: str, name: str) -> None:
    assert any(found.startswith(name) for found in candidates(code))


@pytest.mark.parametrize("code", ["name", "async def", "out.collect(value)", "3"])
def test_code_that_names_nothing_of_ours_leads_nowhere(code: str) -> None:
    documented = {f"aiomailbox.{owner.__name__}" for owner in CLASSES}
    for found in candidates(code):
        owner, _, method = found.removeprefix("aiomailbox.").partition(".")
        assert f"aiomailbox.{owner}" not in documented or not hasattr(
            getattr(am, owner), method
        )


def test_links_to_pages_and_headings_lead_somewhere() -> None:
    """The build of the documentation finds them too; this takes a second."""
    headings = {
        page: {anchor(title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
        for page in DOCS.rglob("*.md")
        if "_build" not in page.parts
        for text in [
            re.sub(
                r"^```.*?^```",
                "",
                page.read_text("utf-8"),
                flags=re.DOTALL | re.MULTILINE,
            )
        ]
    }
    for page in headings:
        text = page.read_text("utf-8")
        for target in re.findall(r"\]\(([^)\s]+\.md(?:#[^)\s]+)?)\)", text):
            path, _, heading = target.partition("#")
            found = (page.parent / path).resolve()
            assert found in headings, (page.name, target)
            assert not heading or heading in headings[found], (page.name, target)


def anchor(title: str) -> str:
    """Return the name of a heading in links, as the documentation makes it."""
    kept = re.sub(r"[^\w\- ]", "", title.lower())
    return kept.replace(" ", "-")
