"""Whether a program runs in a notebook, and how something is shown there."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["displayed", "is_notebook"]


def is_notebook() -> bool:
    """Say whether this program is a kernel of Jupyter, which shows HTML below a cell."""
    if "ipykernel" not in sys.modules:
        return False
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def displayed(html: str, text: str) -> Any:
    """Show HTML below the cell that runs, and text where there is no HTML.

    Returns:
        What shows something else in its place: ``update({"text/html": ...}, raw=True)``.
    """
    from IPython.display import display

    shown = {"text/html": html, "text/plain": text}
    return display(shown, raw=True, display_id=True)
