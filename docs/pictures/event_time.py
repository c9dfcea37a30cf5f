"""Draws the pictures of the page on event time: ``python docs/pictures/event_time.py``.

The windows and sessions in them are computed by the library, not drawn by hand.
"""

from __future__ import annotations

from pathlib import Path

from schemes import in_both_schemes

import aiomailbox as am
from aiomailbox.windowing import merge_windows

HERE = Path(__file__).parent
WIDTH, LEFT, SCALE = 720, 110, 9.5
INK, SOFT, MARK, LATE = "#334155", "#cbd5e1", "#0d9488", "#dc2626"
ARRIVALS = [3, 9, 6, 14, 11, 22, 19, 31, 27, 12, 38, 45, 41, 52]
BOUND = 5
VISITS = [4, 9, 30, 22, 46, 50, 15]
GAP = 10


def x_of(time: float) -> float:
    """Return where a second of event time is drawn."""
    return LEFT + time * SCALE


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return a label."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{words}</text>'


def dot(x: float, y: float, colour: str = MARK) -> str:
    """Return a record."""
    return f'<circle cx="{x:g}" cy="{y:g}" r="5" fill="{colour}"/>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str = SOFT) -> str:
    """Return a line."""
    ends = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
    return f'<line {ends} stroke="{colour}" stroke-width="2"/>'


def box(start: float, end: float, y: float, words: str, *, dashed: bool = False) -> str:
    """Return a window from ``start`` to ``end`` with its name in it."""
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    width = (end - start) * SCALE
    shape = f'<rect x="{x_of(start):g}" y="{y:g}" width="{width:g}" height="24" rx="4"'
    middle = x_of((start + end) / 2)
    return (
        f'{shape} fill="#f1f5f9" stroke="{INK}"{dashes}/>'
        f"{text(middle, y + 17, words, 'middle')}"
    )


def axis(y: float) -> str:
    """Return the axis of event time, in seconds."""
    ticks = "".join(
        text(x_of(time), y + 18, f"{time} s", "middle") for time in range(0, 61, 10)
    )
    return line(LEFT, y, x_of(60), y, INK) + ticks


def picture(height: int, title: str, *parts: str) -> str:
    """Return a whole picture."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="13" fill="{INK}">\n<title>{title}</title>\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def watermark() -> str:
    """Draw records out of order, and the watermark that follows the highest."""
    parts, highest, step = [axis(330)], 0, 20
    parts.append(text(8, 26, "arrival"))
    before = x_of(0)
    for number, time in enumerate(ARRIVALS):
        y = 24 + number * step
        is_late = time <= highest - BOUND
        highest = max(highest, time)
        mark = x_of(max(highest - BOUND, 0))
        parts += [line(before, y, mark, y, INK), line(mark, y, mark, y + step, INK)]
        parts.append(dot(x_of(time), y, LATE if is_late else MARK))
        if is_late:
            parts.append(text(x_of(time) - 10, y + 4, "late", "end"))
        before = mark
    parts.append(text(before + 8, 24 + len(ARRIVALS) * step, "watermark"))
    return picture(360, "The watermark follows the highest event time", *parts)


def windows() -> str:
    """Draw when windows fire, and until when they take late records."""
    parts, lateness = [axis(190)], 10
    parts.append(text(8, 27, "windows"))
    assigner = am.TumblingEventTimeWindows.of(am.seconds(15))
    for number, time in enumerate((5, 20, 35)):
        (found,) = am.explain_window(assigner, time * 1000, am.seconds(lateness))
        assert found.fires_at is not None
        assert found.takes_late_until is not None
        fires = found.fires_at.timestamp()
        over = found.takes_late_until.timestamp()
        y = 10 + number * 56
        start, end = found.window.start / 1000, found.window.end / 1000
        parts.append(box(start, end, y, "takes records"))
        parts.append(box(end, over, y, "takes late", dashed=True))
        parts.append(line(x_of(fires), y - 4, x_of(fires), y + 32, MARK))
        parts.append(text(x_of(fires), y + 46, "fires", "middle"))
    return picture(220, "When windows fire, and when they are over", *parts)


def sessions() -> str:
    """Draw how the windows of single records become sessions."""
    parts = [axis(300)]
    assigner = am.EventTimeSessionWindows.with_gap(am.seconds(GAP))
    own = [assigner.assign(None, time * 1000, 0)[0] for time in VISITS]
    parts.append(text(8, 27, "one by one"))
    for number, (time, window) in enumerate(zip(VISITS, own, strict=True)):
        y = 10 + number * 30
        parts.append(box(window.start / 1000, min(window.end / 1000, 60), y, ""))
        parts.append(dot(x_of(time), y + 12))
    merged = merge_windows(own)
    joined = {window for group in merged for window in group.merged}
    results = [group.result for group in merged]
    results += [window for window in own if window not in joined]
    parts.append(text(8, 257, "sessions"))
    for window in sorted(results):
        length = (window.end - window.start) // 1000
        end = min(window.end / 1000, 60)
        parts.append(box(window.start / 1000, end, 240, f"{length} s"))
    return picture(330, "Sessions: windows that touch become one", *parts)


PICTURES = in_both_schemes(
    {"watermark": watermark, "windows": windows, "sessions": sessions}
)


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (HERE / f"{name}.svg").write_text(draw(), encoding="utf-8")
