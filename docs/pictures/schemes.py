"""Pictures for light pages, and the same ones for dark pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

DARK = {
    "white": "#131416",
    "#334155": "#cbd5e1",
    "#cbd5e1": "#475569",
    "#0d9488": "#2dd4bf",
    "#dc2626": "#f87171",
    "#f1f5f9": "#1e293b",
    "#f4e3c1": "#453a20",
    "#f97316": "#fb923c",
}
COLOUR = re.compile(r'(?<==")(#[0-9a-f]{6}|white)(?=")')


def in_both_schemes(
    pictures: Mapping[str, Callable[[], str]],
) -> dict[str, Callable[[], str]]:
    """Return each picture twice: as it is drawn, and with colours for dark pages."""

    def dark(draw: Callable[[], str]) -> Callable[[], str]:
        return lambda: COLOUR.sub(lambda colour: DARK[colour[0]], draw())

    return {
        name: picture
        for each, draw in pictures.items()
        for name, picture in ((f"{each}-light", draw), (f"{each}-dark", dark(draw)))
    }
