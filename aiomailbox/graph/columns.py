"""Which operators get columns, and which make rows of them."""

from __future__ import annotations

from aiomailbox.graph.transformation import Origin, Transformation

__all__ = ["describe_form", "rows_from"]


def rows_from(origins: list[Origin]) -> Transformation | None:
    """Return the operator or source because of which rows come, None if columns do.

    Args:
        origins: What is united in one input.
    """
    origins = list(origins)
    seen: set[int] = set()
    while origins:
        origin = origins.pop()
        upstream = origin.transformation
        if id(upstream) in seen:
            continue
        seen.add(id(upstream))
        if origin.tag is None and getattr(upstream.source, "gives_columns", False):
            continue
        passed_on = origin.tag is None or origin.tag in upstream.columns_aside
        if not passed_on or not upstream.takes_columns:
            return upstream
        origins += [each for united in upstream.inputs for each in united]
    return None


def describe_form(item: Transformation) -> str:
    """Say what an operator works on, where it could be columns: these, or whose rows."""
    if not item.inputs:
        return _form_of_source(item)
    maker = rows_from([each for united in item.inputs for each in united])
    if maker is None:
        return _own_form(item) if item.takes_columns else f"; rows: {_asking(item)}"
    if item.takes_columns or _has_columns(item):
        return f"; rows: {maker.name} makes them"
    return ""


def _form_of_source(item: Transformation) -> str:
    """Say that a source emits columns, and what makes rows of them for event times."""
    if not getattr(item.source, "gives_columns", False):
        return ""
    asking = item.asks_for_rows
    return f"; columns, and rows: {asking} asks for them" if asking else "; columns"


def _own_form(item: Transformation) -> str:
    """Say that an operator works on columns, or when it did not."""
    reason = "" if item.rows_note is None else item.rows_note.reason
    return f"; columns, then rows when it ran: {reason}" if reason else "; columns"


def _asking(item: Transformation) -> str:
    """Say what in an operator asks for rows."""
    if item.asks_for_rows:
        return f"{item.asks_for_rows} asks for them"
    if item.functions:
        return f"{item.functions[0].text} asks for them"
    return f"{item.name} asks for them"


def _has_columns(item: Transformation) -> bool:
    """Say whether there are columns anywhere before an operator."""
    origins = [each for united in item.inputs for each in united]
    seen: set[int] = set()
    while origins:
        upstream = origins.pop().transformation
        if getattr(upstream.source, "gives_columns", False):
            return True
        if id(upstream) not in seen:
            seen.add(id(upstream))
            origins += [each for united in upstream.inputs for each in united]
    return False
