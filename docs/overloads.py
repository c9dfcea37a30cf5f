"""An extension of Sphinx: which overloads a method has in the reference.

One that is inherited has those of its base. Where overloads take keywords together, as
``**settings: Unpack[...]``, the method's own signature is shown, which has their defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import getattr_static, isclass, isfunction, signature, unwrap
from typing import Any, get_overloads

from sphinx.errors import ExtensionError
from sphinx.pycode import ModuleAnalyzer

import aiomailbox


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", inherit_overloads)
    app.connect("builder-inited", check_overloads, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def overloaded() -> Iterator[tuple[type, str, Any]]:
    """Yield the methods of public classes that have overloads, those of bases too."""
    for owner in filter(isclass, map(aiomailbox.__dict__.get, aiomailbox.__all__)):
        for name in dir(owner):
            method = unwrap(getattr_static(owner, name))
            if isfunction(method) and get_overloads(method):
                yield owner, name, method


def check_overloads(app: Any) -> None:
    """Let the build fail if the reference would show other overloads than Python knows."""
    for owner, name, method in overloaded():
        known = [signature(one) for one in get_overloads(method)]
        has_settings = any("settings" in one.parameters for one in known)
        analyzer = ModuleAnalyzer.for_module(method.__module__)
        analyzer.analyze()
        shown = analyzer.overloads.get(f"{owner.__qualname__}.{name}", [])
        if len(shown) != (0 if has_settings else len(known)):
            raise ExtensionError(
                f"the reference shows {len(shown)} overloads of {owner.__qualname__}.{name}, "
                f"which has {len(known)}"
            )


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
