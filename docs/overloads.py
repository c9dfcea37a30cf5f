"""An extension of Sphinx: which overloads a method has in the reference.

One that is inherited has those of its base. Where overloads take keywords together, as
``**settings: Unpack[...]``, the method's own signature is shown, which has their defaults.
"""

from __future__ import annotations

from inspect import isclass
from typing import Any

from sphinx.pycode import ModuleAnalyzer

import aiomailbox


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", inherit_overloads)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def inherit_overloads(app: Any) -> None:
    """Let Sphinx, which looks by the name of the class that it shows, find them."""
    for owner in filter(isclass, map(aiomailbox.__dict__.get, aiomailbox.__all__)):
        for base in owner.__mro__[1:]:
            if not base.__module__.startswith("aiomailbox."):
                continue
            # It keeps what it has found, for all who ask after this.
            analyzer = ModuleAnalyzer.for_module(base.__module__)
            analyzer.analyze()
            for name, overloads in list(analyzer.overloads.items()):
                of, _, method = name.rpartition(".")
                shown = getattr(owner, method, None)
                if "Unpack[" in str(overloads):
                    del analyzer.overloads[name]
                elif of == base.__qualname__ and shown.__qualname__ == name:
                    analyzer.overloads[f"{owner.__qualname__}.{method}"] = overloads
