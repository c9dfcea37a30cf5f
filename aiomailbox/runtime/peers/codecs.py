"""How the records of a job cross between processes, and are kept in flight."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.run_form import RunForm
from aiomailbox.records.values import PythonSerializer
from aiomailbox.runtime.peers.record_types import record_classes

__all__ = ["element_codec", "serializer_and_forms"]


def serializer_and_forms(
    found: Iterable[Any], *, has_arrow: bool
) -> tuple[PythonSerializer, list[RunForm[Any]]]:
    """Return what writes values, and the further forms of runs.

    Args:
        found: The classes that records may have; see `record_classes`.
        has_arrow: Whether records may be made of Arrow's columns.
    """
    classes = record_classes(found, has_arrow=has_arrow)
    serializer = PythonSerializer(classes)
    forms: list[RunForm[Any]] = []
    if has_arrow:
        # Its import takes long, and few jobs need it.
        from aiomailbox.columnar.arrow_form import ArrowForm

        forms.append(ArrowForm(serializer, classes))
    return serializer, forms


def element_codec(found: Iterable[Any], *, has_arrow: bool) -> ElementCodec:
    """Return the codec of all edges of a job; arguments as `serializer_and_forms`."""
    serializer, forms = serializer_and_forms(found, has_arrow=has_arrow)
    return ElementCodec(serializer, forms=forms)
