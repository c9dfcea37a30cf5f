"""What is entered at the start of a job: which edge is serialized how.

Theory of operation: edges are named alike in every process of a job. Each process
enters the same codecs and compares one digest of all of them with its peers, before
any record travels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.run import RunForm
from aiomailbox.records.run_columns import ValueSerializer

_DIGEST_BYTES = 16


class EdgeCodec(NamedTuple):
    """How one edge is serialized, and what that is called."""

    elements: ElementCodec
    serializer_id: str
    schema_version: int
    form_tags: tuple[int, ...]


class CodecTable:
    """The codecs of a job's edges.

    Args:
        operators: Names of the job's operators, for latency markers.
        forms: Forms of runs beside lists, such as Arrow's; for all edges.

    Example:
        >>> from aiomailbox.records.run_columns import PythonSerializer
        >>> table = CodecTable(operators=["source"])
        >>> table.enter("0>1", PythonSerializer())
        >>> table["0>1"].serializer_id
        'python'
    """

    __slots__ = ("_edges", "_forms", "_operators")

    def __init__(
        self, *, operators: Iterable[str] = (), forms: Iterable[RunForm[Any]] = ()
    ) -> None:
        self._operators = tuple(operators)
        self._forms = tuple(forms)
        self._edges: dict[str, EdgeCodec] = {}

    def __getitem__(self, edge: str) -> EdgeCodec:
        codec = self._edges.get(edge)
        if codec is None:
            raise InvalidArgumentError(
                "edge",
                f"nothing says how edge {edge!r} is serialized",
                f"Known are {sorted(self._edges)}.",
            )
        return codec

    def __len__(self) -> int:
        return len(self._edges)

    def enter(self, edge: str, serializer: ValueSerializer) -> None:
        """Say how an edge's values are serialized.

        Raises:
            InvalidArgumentError: If that was said already.
        """
        if edge in self._edges:
            raise InvalidArgumentError("edge", f"{edge!r} has a serializer already")
        elements = ElementCodec(
            serializer, operators=self._operators, forms=self._forms
        )
        self._edges[edge] = EdgeCodec(
            elements,
            serializer.serializer_id,
            serializer.schema_version,
            tuple(sorted(form.tag for form in self._forms)),
        )

    def digest(self) -> bytes:
        """Return 16 bytes that are equal where all edges are serialized alike."""
        described = repr(
            [
                (edge, codec.serializer_id, codec.schema_version, codec.form_tags)
                for edge, codec in sorted(self._edges.items())
            ]
        )
        return hashlib.blake2b(described.encode(), digest_size=_DIGEST_BYTES).digest()
