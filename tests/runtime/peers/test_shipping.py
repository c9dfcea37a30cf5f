"""A job on its way to a worker: the same job there, or a reason why not."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import threading
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest

import aiomailbox as am
from aiomailbox.errors import NotShippableError
from aiomailbox.exchange.writer import KeyGroupPartitioner
from aiomailbox.graph.job_graph import build_job_graph
from aiomailbox.graph.transformation import Origin, Transformation
from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.stateless.operators import StatelessOperator
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.peers.placement import place
from aiomailbox.runtime.peers.record_types import RecordTypes, record_classes
from aiomailbox.runtime.peers.shipping import (
    Shipment,
    is_importable,
    pack,
    pickled,
    unpack,
    why_unpicklable,
)


class Stays:
    stays_in_parent = True

    def __reduce__(self) -> Any:
        raise TypeError("a session cannot be pickled")


def shipment(*sinks: Transformation, **settings: Any) -> Shipment:
    graph = build_job_graph("job", list(sinks), parent_apart=True, **settings)
    return Shipment(graph, JobConfig(), place(graph, 2), 7, bytes(16), False)


def shipped(made: Shipment) -> Shipment:
    _, payload, limits = pack(made)
    return unpack(payload, limits)


def described(graph: Any) -> list[Any]:
    return [
        (
            vertex.id,
            [
                (
                    node.index,
                    node.name,
                    node.parallelism,
                    node.max_parallelism,
                    [
                        [(e.source.index, e.input_index, e.chained) for e in united]
                        for united in node.in_edges
                    ],
                    [
                        (e.target.index, e.partitioner.name, e.tag)
                        for e in node.out_edges
                    ],
                )
                for node in vertex.nodes
            ],
        )
        for vertex in graph.vertices
    ]


def step(name: str, *upstream: Any, **facts: Any) -> Transformation:
    origins = [item if isinstance(item, Origin) else Origin(item) for item in upstream]
    return Transformation(
        name, functools.partial(Operator), [origins] if origins else [], **facts
    )


def test_the_graph_is_the_same_there() -> None:
    source: Any = Stays()
    first = step("source", source=source)
    second = step("source 2", parallelism=2)
    keyed = Origin(first, KeyGroupPartitioner(str, 128))
    union = step("union", keyed, second, parallelism=3, is_keyed=True, uid="u")
    last = step("last", union)
    made = shipment(last, step("other", union))
    there = shipped(made)
    assert described(there.graph) == described(made.graph)
    assert (there.seed, there.placement) == (7, made.placement)
    assert there.graph.vertices[0].head.transformation.source is None


def test_a_long_pipeline_needs_no_deep_recursion() -> None:
    last = step("source")
    for number in range(2000):
        last = step(f"step {number}", last)
    made = shipment(last)
    assert described(shipped(made).graph) == described(made.graph)


def test_which_limit_is_meant_survives() -> None:
    """Equal limits of two operators stay two, one limit of two operators stays one."""
    shared, alone = RateLimit(5), RateLimit(5)
    steps: list[Transformation] = []
    for number, limit in enumerate([shared, shared, alone]):
        factory: Any = functools.partial(StatelessOperator, limit)
        steps.append(Transformation(f"step {number}", factory, chaining_of(steps)))
    made = shipment(steps[-1])
    _, payload, limits = pack(made)
    assert [id(limit) for limit in limits] == [id(shared), id(alone)]
    again = [RateLimit(5), RateLimit(5)]
    nodes = unpack(payload, again).graph.vertices[0].nodes
    found: list[Any] = [node.transformation.factory for node in nodes]
    assert [factory.args[0] for factory in found] == [again[0], again[0], again[1]]
    assert found[0].args[0] is found[1].args[0] is again[0]
    assert found[2].args[0] is again[1]


def chaining_of(steps: list[Transformation]) -> list[list[Origin]]:
    return [[Origin(steps[-1])]] if steps else []


LOCK = threading.Lock()


def test_what_cannot_be_sent_is_named() -> None:
    def holds(value: Any) -> Any:
        return LOCK, value

    class Client:
        def __init__(self) -> None:
            self.lock = LOCK

        def call(self, value: Any) -> Any:
            return self, value

    def problem(value: Any) -> str:
        return str(why_unpicklable(value, pickle_by_value))

    assert "variable 'LOCK' of" in problem(holds)
    assert "attribute 'lock', in object is a lock" in problem(Client().call)
    assert "item 'a' is a lock" in problem(functools.partial(print, {"a": LOCK}))
    assert why_unpicklable(describe, pickle_by_value) is None


def describe(value: Any) -> str:
    return str(value)


def pickle_by_value(value: Any) -> None:
    import cloudpickle

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        cloudpickle.dumps(value)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def test_the_partitioner_of_an_edge_is_blamed_on_its_consumer() -> None:
    def key(value: Any) -> Any:
        return LOCK.locked(), value

    keyed = Origin(step("source"), KeyGroupPartitioner(lambda v: (LOCK, v), 128))
    with pytest.raises(NotShippableError) as raised:
        pack(shipment(step("count", keyed, uid="c-1")))
    assert (raised.value.operator, raised.value.uid) == ("count", "c-1")
    assert key(1)[1] == 1


def test_modules_that_a_worker_finds_go_by_name_and_others_by_value() -> None:
    import json.decoder

    import msgspec

    import aiomailbox.runtime.master as ours

    assert all(map(is_importable, [json, json.decoder, msgspec, ours, sys]))
    made = ModuleType("made_up")
    assert not is_importable(made)
    made.__file__ = "/nowhere/made_up.py"
    assert not is_importable(made)
    code = "def double(value):\n    return 2 * value\n"
    exec(compile(code, "made_up.py", "exec"), made.__dict__)
    sys.modules["made_up"] = made
    try:
        factory: Any = functools.partial(StatelessOperator, made.double)
        _, payload, _ = pack(shipment(Transformation("double", factory)))
    finally:
        del sys.modules["made_up"]
    (vertex,) = unpack(payload, []).graph.vertices
    found: Any = vertex.head.transformation.factory
    assert found.args[0](4) == 8


class Trade(NamedTuple):
    price: float


@dataclass
class Order:
    trade: Trade


class Maker:
    def __call__(self, line: str) -> Any:
        return make(line)


def test_code_keeps_the_name_of_its_file() -> None:
    """An error in a worker names the user's line, whichever cloudpickle there is."""

    def outer(number: int) -> Any:
        return lambda: number

    found = pickle.loads(pickled(outer))
    assert found is not outer
    assert found.__code__.co_filename == __file__
    assert found(1).__code__.co_filename == __file__
    assert found(1)() == 1


def make(line: str) -> Any:
    return Order(Trade(float(line)))


def hinted(record: Any) -> list[Order]:
    return [record]


@pytest.mark.parametrize("value", [make, Maker, hinted, lambda line: make(line)])
def test_classes_are_found_in_code_hints_and_callees(value: Any) -> None:
    types = RecordTypes()
    types.look_at(value)
    assert {Trade, Order} <= set(types.found)
    assert all(not kind.__module__.startswith("aiomailbox.") for kind in types.found)


def test_classes_of_a_function_keep_their_names_on_the_way() -> None:
    @dataclass
    class Local:
        value: int

    def work(value: int) -> Any:
        return Local(value)

    factory: Any = functools.partial(StatelessOperator, work)
    complete, payload, limits = pack(shipment(Transformation("work", factory)))
    there = unpack(payload, limits)
    assert [kind.__qualname__ for kind in there.record_types] == [
        kind.__qualname__ for kind in complete.record_types
    ]
    mine, theirs = (
        record_classes(each.record_types, has_arrow=False) for each in (complete, there)
    )
    assert mine.fingerprint() == theirs.fingerprint()
    assert mine.of(Local) is not None


STRUCTS = """
import msgspec
from aiomailbox.runtime.peers.shipping import pickled


class Base(msgspec.Struct, frozen=True, tag=True):
    at: int

    def text(self):
        return f"at {self.at}"


class Order(Base, frozen=True, kw_only=True, rename="camel", order=True):
    item_ids: list[int] = msgspec.field(default_factory=list)
    before: "Order | None" = None
    MOST = 3

    def __post_init__(self):
        if len(self.item_ids) > self.MOST:
            raise ValueError("too many")

    def text(self):
        return super().text() + f" of {type(self) is Order}"

    @property
    def again(self):
        return Order(self.at + 1, before=self)


def shown(kind):
    one = kind(7, item_ids=[1]).again
    text = msgspec.json.encode(one).decode()
    try:
        kind(1, item_ids=[1, 2, 3, 4])
    except ValueError as error:
        refused = str(error)
    fields = [(f.name, f.encode_name, f.required) for f in msgspec.structs.fields(kind)]
    equal = msgspec.json.decode(text, type=kind) == one, one < one.again
    return text, one.text(), refused, fields, equal, kind.__qualname__


print(shown(Order))
print(pickled((shown, Order)).hex())
"""
RECEIVER = """
import pickle, sys
shown, kind = pickle.loads(bytes.fromhex(sys.argv[1]))
print(shown(kind))
"""


def test_a_class_of_msgspec_that_is_defined_in_the_program_is_the_same_there() -> None:
    def run(code: str, *given: str) -> list[str]:
        command = [sys.executable, "-c", code, *given]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    here, sent = run(STRUCTS)
    assert run(RECEIVER, sent) == [here]


class Proxy:
    """Like the proxies of web frameworks outside of a request."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("there is no request")


def lazy_module() -> ModuleType:
    """Like those that import their parts when they are asked for."""

    def load(name: str) -> Any:
        raise RuntimeError(f"install more to have {name}")

    module = ModuleType("lazy")
    module.__dict__["__getattr__"] = load
    return module


def answer(value: Any) -> Any:
    return request if value else lazy.part  # type: ignore[name-defined]  # noqa: F821


def test_what_fails_when_it_is_asked_is_not_asked() -> None:
    named = {"request": Proxy(), "lazy": lazy_module()}
    function = FunctionType(answer.__code__, named)

    def pickle(value: Any) -> None:
        if value is function or value is named["request"]:
            raise TypeError("a request cannot be pickled")

    types = RecordTypes()
    types.look_at(function)
    assert types.found == {}
    problem = why_unpicklable(function, pickle)
    assert problem == (
        "its variable 'request' of answer is a Proxy: a request cannot be pickled"
    )
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).map(function).sink_to(print)
    assert "map" in env.explain()
