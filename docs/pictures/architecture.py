"""Draws the picture of the architecture: ``python docs/pictures/architecture.py``.

Two files, one for light pages and one for dark ones.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
WIDTH, HEIGHT = 860, 422


class Palette(NamedTuple):
    """The colours of one picture."""

    ink: str
    soft: str
    quiet: str
    box: str
    task: str
    mark: str


PALETTES = {
    "light": Palette("#334155", "#94a3b8", "#64748b", "#f8fafc", "#e2e8f0", "#0f766e"),
    "dark": Palette("#e2e8f0", "#64748b", "#a3b1c6", "#1e293b", "#334155", "#2dd4bf"),
}


class Drawing:
    """Shapes in the colours of a palette."""

    def __init__(self, palette: Palette) -> None:
        self.palette = palette
        self.shapes: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        anchor: str = "middle",
        size: int = 13,
        bold: bool = False,
        soft: bool = False,
    ) -> None:
        """Write a line of text."""
        colour = self.palette.quiet if soft else self.palette.ink
        weight = ' font-weight="600"' if bold else ""
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" '
            f'fill="{colour}"{weight}>{words}</text>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str,
        stroke: str,
        dashed: bool = False,
    ) -> None:
        """Draw a rectangle."""
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" '
            f'fill="{fill}" stroke="{stroke}" stroke-width="1.5"{dashes}/>'
        )

    def arrow(
        self, x1: float, y1: float, x2: float, y2: float, *, both: bool = False
    ) -> None:
        """Draw an arrow; ``both`` for one with two heads."""
        start = ' marker-start="url(#back)"' if both else ""
        self.shapes.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" '
            f'stroke="{self.palette.mark}" stroke-width="2" '
            f'marker-end="url(#head)"{start}/>'
        )

    def task(self, x: float, name: str, operators: list[str]) -> None:
        """Draw a task: a mailbox and its chain of operators."""
        palette = self.palette
        self.box(x, 130, 170, 150, fill=palette.task, stroke=palette.ink)
        self.text(x + 85, 152, name, bold=True)
        self.box(x + 14, 164, 142, 24, fill=palette.box, stroke=palette.mark)
        self.text(x + 85, 181, "mailbox: mail, timers", size=12)
        for index, operator in enumerate(operators):
            y = 196 + index * 26
            self.box(x + 14, y, 142, 22, fill=palette.box, stroke=palette.soft)
            self.text(x + 85, y + 16, operator, size=12)

    def outside(self, x: float, y: float, width: float, lines: list[str]) -> None:
        """Draw something that is not the library's."""
        height = 16 + 18 * len(lines)
        palette = self.palette
        self.box(x, y, width, height, fill="none", stroke=palette.soft, dashed=True)
        for index, words in enumerate(lines):
            self.text(x + width / 2, y + 22 + 18 * index, words)

    def svg(self) -> str:
        """Return the picture."""
        mark = self.palette.mark
        shape = f'<path d="M0,0 L8,4 L0,8 z" fill="{mark}"/>'
        size = 'viewBox="0 0 8 8" refY="4" markerWidth="7" markerHeight="7"'
        return "\n".join(
            [
                (
                    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
                    ' font-family="system-ui, sans-serif">'
                ),
                (
                    "<title>A job: tasks with mailboxes on the program's event loop"
                    "</title>"
                ),
                (
                    f'<defs><marker id="head" {size} refX="7" orient="auto">{shape}</marker>'
                    f'<marker id="back" {size} refX="7" orient="auto-start-reverse">{shape}'
                    "</marker></defs>"
                ),
                *self.shapes,
                "</svg>",
                "",
            ]
        )


def draw(palette: Palette) -> str:
    """Return the picture in the colours of a palette."""
    drawing = Drawing(palette)
    drawing.outside(10, 14, 190, ["Spark DataFrame, files,", "async iterables"])
    drawing.outside(335, 14, 190, ["a slow service", "(HTTP, a model)"])
    drawing.outside(660, 14, 190, ["Parquet, SQL, Redis,", "Spark, your code"])

    drawing.box(10, 92, 840, 248, fill=palette.box, stroke=palette.soft)
    drawing.text(
        122, 114, "your program: one event loop, or workers", anchor="start", soft=True
    )
    drawing.task(30, "source task", ["source", "map", "assign event times"])
    drawing.task(345, "task", ["map_async", "keyed window", "map"])
    drawing.task(660, "sink task", ["select", "sink"])
    for start in (200, 515):
        drawing.arrow(start, 222, start + 145, 222)
        drawing.text(start + 72, 212, "buffers,", size=12)
        drawing.text(start + 72, 240, "watermarks,", size=12)
        drawing.text(start + 72, 256, "barriers", size=12)
        drawing.text(start + 72, 276, "← credit", size=12, soft=True)

    drawing.arrow(105, 66, 105, 126)
    drawing.arrow(430, 126, 430, 70, both=True)
    drawing.arrow(755, 126, 755, 70)

    drawing.box(30, 296, 800, 32, fill=palette.task, stroke=palette.ink)
    drawing.text(
        430,
        317,
        "JobMaster: splits, rate limits, checkpoints, restarts, commits, metrics",
    )
    drawing.outside(
        230,
        376,
        400,
        ["checkpoints and the journal of calls (a directory or fsspec)"],
    )
    drawing.arrow(430, 328, 430, 372, both=True)
    return drawing.svg()


PICTURES = {
    f"architecture-{name}": partial(draw, palette) for name, palette in PALETTES.items()
}


if __name__ == "__main__":
    for name, picture in PICTURES.items():
        (HERE / f"{name}.svg").write_text(picture(), encoding="utf-8")
