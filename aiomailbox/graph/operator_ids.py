"""By what the state of an operator is found again: its uid, or its place in the graph.

Theory of operation: an id that was not given is made of the operator's name and of the
ids of what feeds it, so that neither chaining nor parallelism, nor an operator that is
added after it or in another branch, changes it. Of twins, which have one name and one
input, the later ones are numbered in the order in which they were described.

Concept:
    Flink, ``StreamGraphHasherV2``; ours leaves chaining out and takes names in.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

import msgspec

from aiomailbox.graph.transformation import Transformation
from aiomailbox.ids import OperatorId

__all__ = ["operator_ids"]


def operator_ids(transformations: Iterable[Transformation]) -> list[OperatorId]:
    """Return the id of each operator; all differ.

    Args:
        transformations: All of a job, each after what feeds it.

    Example:
        >>> from aiomailbox.operators.stateless.operators import MapOperator
        >>> plain = Transformation("map", lambda: MapOperator(str))
        >>> chosen = Transformation("map", lambda: MapOperator(str), uid="prices")
        >>> operator_ids([plain, chosen])
        ['map@9656e23f85a0ff1c', 'prices']
    """
    listed = list(transformations)
    taken = {item.uid for item in listed}
    known: dict[int, OperatorId] = {}
    # How many twins there are so far: of thousands, each would be compared with all.
    twins: Counter[str] = Counter()
    for item in listed:
        first = _derived(item, known, 0)
        found = OperatorId(item.uid or first)
        while item.uid is None and found in taken:
            twins[first] += 1
            found = OperatorId(_derived(item, known, twins[first]))
        taken.add(found)
        known[id(item)] = found
    return [known[id(item)] for item in listed]


def _derived(item: Transformation, known: dict[int, OperatorId], number: int) -> str:
    inputs = [
        [
            (
                known[id(origin.transformation)],
                None if origin.tag is None else origin.tag.id,
            )
            for origin in united
        ]
        for united in item.inputs
    ]
    facts = msgspec.json.encode([item.name, inputs, number])
    return f"{item.name}@{hashlib.blake2b(facts, digest_size=8).hexdigest()}"
