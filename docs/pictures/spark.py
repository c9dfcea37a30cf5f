"""Draws what of the flights demo runs where in Spark: ``python docs/pictures/spark.py``.

One picture for `apply_to`, over Spark's shuffle, and one for `run_on`, side by side.
"""

from __future__ import annotations

from pathlib import Path

from schemes import in_both_schemes

HERE = Path(__file__).parent
WIDTH, HEIGHT = 860, 430
INK, SOFT, MARK, TASK = "#334155", "#cbd5e1", "#0d9488", "#f1f5f9"
# Where a column begins, and how wide it is.
DRIVER, JVM, WORKERS = (12, 190), (236, 250), (538, 310)


def text(
    x: float, y: float, words: str, *, anchor: str = "middle", bold: bool = False
) -> str:
    """Return a line of text."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}>{words}</text>'


def rectangle(
    x: float, y: float, width: float, height: float, fill: str, edge: str, more: str
) -> str:
    """Return a rectangle with round corners."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" '
        f'fill="{fill}" stroke="{edge}"{more}/>'
    )


def column(place: tuple[float, float], title: str) -> list[str]:
    """Return a frame for what runs in one kind of process."""
    x, width = place
    dashed = ' stroke-dasharray="5 4"'
    return [
        rectangle(x, 34, width, HEIGHT - 46, "white", SOFT, dashed),
        text(x + width / 2, 24, title, bold=True),
    ]


def box(
    place: tuple[float, float], y: float, title: str, *lines: str, tall: int = 0
) -> list[str]:
    """Return a box with a title and lines in a column."""
    x, width = place
    height = max(tall, 30 + 18 * len(lines))
    middle = x + width / 2
    return [
        rectangle(x + 10, y, width - 20, height, TASK, INK, ""),
        text(middle, y + 20, title, bold=True),
        *[text(middle, y + 40 + 18 * n, line) for n, line in enumerate(lines)],
    ]


def arrow(x1: float, y1: float, x2: float, y2: float, *, both: bool = False) -> str:
    """Return an arrow; ``both`` for one with two heads."""
    start = ' marker-start="url(#head)"' if both else ""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{MARK}" '
        f'stroke-width="2" marker-end="url(#head)"{start}/>'
    )


def around(x: float, y: float, down: float, place: tuple[float, float]) -> list[str]:
    """Return an arrow from under a box down, and to a box in the column on the left."""
    line = (
        f'<line x1="{x:g}" y1="{y:g}" x2="{x:g}" y2="{down:g}" stroke="{MARK}" '
        'stroke-width="2"/>'
    )
    return [line, arrow(x, down, place[0] + place[1] - 9, down)]


def between(
    left: tuple[float, float],
    right: tuple[float, float],
    y: float,
    *,
    back: bool = False,
    both: bool = False,
) -> str:
    """Return an arrow from a box to one in another column."""
    first, last = left[0] + left[1] - 9, right[0] + 9
    if back:
        return arrow(last, y, first, y)
    return arrow(first, y, last, y, both=both)


def picture(title: str, *parts: list[str] | str) -> str:
    """Return a whole picture."""
    shapes = [
        shape for part in parts for shape in ([part] if isinstance(part, str) else part)
    ]
    head = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 z" '
        f'fill="{MARK}"/></marker></defs>'
    )
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
                f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">'
            ),
            f"<title>{title}</title>",
            head,
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            *shapes,
            "</svg>",
            "",
        ]
    )


def frames() -> list[str]:
    """Return the three kinds of processes."""
    return [
        *column(DRIVER, "your program"),
        *column(JVM, "Spark's JVMs"),
        *column(WORKERS, "Spark's Python workers"),
    ]


def shuffle() -> str:
    """Draw the demo over Spark's shuffle."""
    return picture(
        "The flights demo inside Spark with apply_to: what runs where",
        frames(),
        box(
            DRIVER,
            46,
            "daily_delays.apply_to",
            "builds the graph,",
            "cuts it at key_by,",
            "packs the functions",
        ),
        box(JVM, 46, "flights", "read CSV,", "sort each partition"),
        box(
            WORKERS,
            46,
            "stage 1: a task per partition",
            "event times and watermarks",
            "map_async(weather): 128 calls at a time",
            "filter, key groups by airport",
        ),
        between(DRIVER, JVM, 88),
        between(JVM, WORKERS, 76),
        text(512, 68, "Arrow"),
        box(
            JVM,
            130,
            "Spark's shuffle",
            "rows of runs and watermarks:",
            "edge, part, wm, producer, seq, …",
            "to their part, sorted by wm,",
            "producer and seq",
        ),
        around(WORKERS[0] + 50, 131, 152, JVM),
        box(
            WORKERS,
            188,
            "stage 2: parallelism= tasks",
            "valve: the least of the watermarks",
            "windows of a day per airport",
            "aggregate, map to DailyDelays",
        ),
        between(JVM, WORKERS, 212),
        box(JVM, 290, "rows of DailyDelays", "as any DataFrame:", "SQL, tables, files"),
        around(WORKERS[0] + 155, 273, 323, JVM),
        box(DRIVER, 290, "applied.result", "lazy: each action", "runs all of it"),
        between(DRIVER, JVM, 323, back=True),
        box(DRIVER, 182, "rate limits", "leases for all workers"),
        text(
            WORKERS[0] + WORKERS[1] / 2,
            372,
            "in each task an event loop of its own,",
        ),
        text(
            WORKERS[0] + WORKERS[1] / 2,
            390,
            "which asks the driver for leases",
        ),
    )


def side_by_side() -> str:
    """Draw the demo in a barrier stage."""
    return picture(
        "The flights demo inside Spark with run_on: what runs where",
        frames(),
        box(
            DRIVER,
            46,
            "daily_delays.run_on",
            "builds the graph,",
            "starts attempt 0, 1, …",
            "from the last checkpoint",
        ),
        box(
            JVM,
            46,
            "flights",
            "read CSV, move each row",
            "once by a hash of it, sort",
            tall=84,
        ),
        box(
            WORKERS,
            46,
            "worker 1: also the director",
            "event times, weather, filter",
            "windows of its airports",
            "checkpoints, commits, rate limits",
        ),
        between(DRIVER, JVM, 88),
        between(JVM, WORKERS, 76),
        text(512, 68, "Arrow"),
        arrow(WORKERS[0] + 155, 132, WORKERS[0] + 155, 206, both=True),
        text(WORKERS[0] + 168, 158, "TCP: buffers, credits,", anchor="start"),
        text(WORKERS[0] + 168, 176, "barriers, watermarks", anchor="start"),
        text(WORKERS[0] + 142, 167, "one barrier stage", anchor="end"),
        box(
            WORKERS,
            210,
            "worker 2",
            "event times, weather, filter",
            "windows of its airports",
        ),
        arrow(JVM[0] + JVM[1] - 9, 116, WORKERS[0] + 9, 230),
        box(
            JVM,
            300,
            "a directory that all see",
            "Parquet files, visible with",
            "each checkpoint; checkpoints",
        ),
        around(WORKERS[0] + 155, 277, 334, JVM),
        box(DRIVER, 300, "its result", "a DataFrame over", "committed files"),
        between(DRIVER, JVM, 334, back=True),
        text(
            WORKERS[0] + WORKERS[1] / 2,
            390,
            "each worker an event loop with its tasks",
        ),
    )


PICTURES = in_both_schemes({"spark-shuffle": shuffle, "spark-barrier": side_by_side})


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (HERE / f"{name}.svg").write_text(draw(), encoding="utf-8")
