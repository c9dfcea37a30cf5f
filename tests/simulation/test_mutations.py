"""What is done wrong in one place is found within 100 seeds."""

from __future__ import annotations

import pytest

from aiomailbox.testing import Faults, simulate
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.pipelines import PIPELINES
from tests.simulation.test_simulation import BACKENDS, SEEDS, check_calls

# All of them only in the long session: to look for one takes some seconds.
CHOSEN = MUTATIONS if SEEDS > 1_000 else MUTATIONS[::5]


def found_with(mutation: Mutation) -> int:
    """Return a seed that finds a mutation, of those from 0 to 99."""
    pipeline = PIPELINES[mutation.pipeline]
    # Without faults it does what it should: who finds it is a seed.
    simulate(pipeline, seeds=[0], faults=Faults.none(), backends=BACKENDS)
    for seed in sorted(range(100), key=lambda seed: seed != mutation.seed):
        try:
            check_calls(simulate(pipeline, seeds=[seed], backends=BACKENDS).runs[0])
        except AssertionError:
            return seed
    pytest.fail("nothing was found")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", CHOSEN, ids=lambda one: one.what)
def test_a_mutation_is_found(mutation: Mutation) -> None:
    with mutation.broken():
        print(f"found with seed {found_with(mutation)}")
