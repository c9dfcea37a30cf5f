"""An extension of Sphinx: names in code on any page lead to their place in the reference."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from names import candidates
from sphinx.util.nodes import make_refnode


def setup(app: Any) -> dict[str, bool]:
    app.connect("doctree-resolved", link_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def link_names(app: Any, doctree: nodes.document, docname: str) -> None:
    """Put a link around each name that is documented, but for those at that very place."""
    objects = app.env.domains.python_domain.objects
    for literal in list(doctree.findall(nodes.literal)):
        if isinstance(literal.parent, nodes.reference | nodes.title):
            continue
        if is_of_flink(literal, docname):
            continue
        for name in candidates(literal.astext(), docname):
            if (place := objects.get(name)) is not None:
                link = make_refnode(
                    app.builder,
                    docname,
                    place.docname,
                    place.node_id,
                    literal.deepcopy(),
                    name,
                )
                link["classes"].append("name")
                literal.replace_self(link)
                break


def is_of_flink(literal: nodes.literal, docname: str) -> bool:
    """Say whether code names something of Flink's, which may have the same name here."""
    parent = literal.parent
    if docname in {"pyflink", "flink-map"}:
        entry = parent.parent if isinstance(parent, nodes.paragraph) else parent
        return isinstance(entry, nodes.entry) and entry.parent.index(entry) == 0
    return isinstance(parent, nodes.paragraph) and parent.astext().startswith("Flink")
