"""A job on its way to other processes: cloudpickle, one way only.

Theory of operation: the graph is sent flat, nodes and edges by number, so that a long
pipeline needs no deep recursion. Operators that stay in the parent go without their
factories. Rate limits are sent by number: which limit an operator means is a matter of
identity. Functions of modules that a worker could not import go by value.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import inspect
import io
import pickle  # noqa: TID251 -- from the parent to its workers
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
import msgspec.structs
from msgspec import StructMeta

from aiomailbox.errors import MissingExtraError, NotShippableError, safe_str
from aiomailbox.graph.job_graph import Edge, JobGraph, JobVertex, Node
from aiomailbox.graph.transformation import Transformation
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.peers.placement import PARENT, Placement
from aiomailbox.runtime.peers.record_types import RecordTypes
from aiomailbox.state.serializers import state_name_hints

# Which modules a worker can import: functions of all others go by value.


class ModulesByValue:
    """Tells cloudpickle, while in use, which modules no other process could import.

    Tests that pytest imported by their files, code blocks, modules made at run time:
    their functions and classes are sent with their code.

    Args:
        cloudpickle: The module.
    """

    def __init__(self, cloudpickle: Any) -> None:
        self._cloudpickle = cloudpickle
        self._seen: set[str] = set()
        self._registered: list[ModuleType] = []

    def __enter__(self) -> ModulesByValue:
        return self

    def __exit__(self, *_: object) -> None:
        for module in self._registered:
            self._cloudpickle.unregister_pickle_by_value(module)

    def look_at(self, value: Any) -> None:
        """Look at the module of a function or class that is about to be pickled."""
        if not isinstance(value, type | FunctionType):
            return
        name = value.__module__
        if not isinstance(name, str) or name in self._seen:
            return
        self._seen.add(name)
        module = sys.modules.get(name)
        if module is None or name == "__main__" or is_importable(module):
            return
        if name not in self._cloudpickle.list_registry_pickle_by_value():
            self._cloudpickle.register_pickle_by_value(module)
            self._registered.append(module)


def is_importable(module: ModuleType) -> bool:
    """Say whether a new process with our ``sys.path`` finds this very module.

    Example:
        >>> import json.decoder
        >>> is_importable(json.decoder)
        True
    """
    file = getattr(module, "__file__", None)
    if file is None:
        # Built in, frozen or a namespace: if not, nothing could be done about it.
        return getattr(module, "__spec__", None) is not None
    path = Path(file)
    names = {module.__name__.replace(".", "/") + end for end in ("", "/__init__")}
    for entry in import_path():
        try:
            relative = path.relative_to(entry)
        except ValueError:
            continue
        # "x.cpython-311-linux.so" is found as x, like "x.py".
        if str(relative.parent / relative.name.partition(".")[0]) in names:
            return True
    return _is_found_by_a_finder(module, file)


def import_path() -> list[str]:
    """Return ``sys.path`` as it means the same from anywhere."""
    return [str(Path(entry).absolute()) for entry in sys.path]


def _is_found_by_a_finder(module: ModuleType, file: str) -> bool:
    """Say whether an installed finder knows it, as for editable installs."""
    for finder in sys.meta_path:
        # Those of pytest and the like are not there in a worker.
        if not getattr(finder, "__module__", "").startswith("__editable__"):
            continue
        spec: importlib.machinery.ModuleSpec | None = finder.find_spec(
            module.__name__, None
        )
        if spec is not None and spec.origin == file:
            return True
    return False


# Finds what of a function cannot be pickled, and says where it is held.


_DEPTH_MAX: Final = 8
_OF_SPARK: Final = (
    "Spark's driver is in this program, and functions run outside of it. Pass a DataFrame "
    "as another input of the pipeline, apply_to(left=df, right=other), or collect() what "
    "is small before."
)
_PARTS_MAX: Final = 100


def why_unpicklable(value: Any, probe: Callable[[Any], None]) -> str | None:
    """Return what cannot be pickled and the way to it, or None if all can.

    Args:
        value: Where to begin.
        probe: Pickles a value, or raises.

    Example:
        >>> import pickle, threading
        >>> why_unpicklable({"lock": threading.Lock()}, pickle.dumps)
        "its item 'lock' is a lock: cannot pickle '_thread.lock' object"
        >>> why_unpicklable([1, 2], pickle.dumps)
    """
    problem = _problem(value, probe)
    if problem is None:
        return None
    way: list[str] = []
    for _ in range(_DEPTH_MAX):
        for name, part in _seen_parts(value):
            found = _problem(part, probe)
            if found is not None:
                way.append(name)
                value, problem = part, found
                if type(part).__module__.startswith("pyspark."):
                    problem = _OF_SPARK
                break
        else:
            break
        if problem is _OF_SPARK:
            break
    named = [name for name in way if name]
    where = ", in ".join(reversed(named))
    kind = type(value).__name__
    return f"its {where} is a {kind}: {problem}" if where else f"{kind}: {problem}"


def _problem(value: Any, probe: Callable[[Any], None]) -> str | None:
    try:
        probe(value)
    except Exception as error:  # noqa: BLE001 -- whatever the user's __reduce__ raises
        return safe_str(error) or type(error).__name__
    return None


def _seen_parts(value: Any) -> list[tuple[str, Any]]:
    """Return what a value holds, as far as it shows it."""
    seen: list[tuple[str, Any]] = []
    # An object may fail when it is asked for what it has.
    with contextlib.suppress(Exception):
        seen.extend(islice(_parts(value), _PARTS_MAX))
    return seen


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds, with a name for people; "" where it is not theirs."""
    if isinstance(value, functools.partial):
        yield from (("", part) for part in (value.func, *value.args))
        yield from (("", part) for part in value.keywords.values())
    elif isinstance(value, FunctionType):
        variables = inspect.getclosurevars(value)
        named = {**variables.nonlocals, **variables.globals}
        name = value.__qualname__
        for key, part in named.items():
            # Not isinstance(): it asks the object.
            if not issubclass(type(part), ModuleType):
                yield f"variable {key!r} of {name}", part
        yield from ((f"default of {name}", part) for part in value.__defaults__ or ())
    elif isinstance(value, MethodType):
        yield "object", value.__self__
        yield "", value.__func__
    elif isinstance(value, dict):
        yield from ((f"item {key!r}", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (("", part) for part in value)
    elif not isinstance(value, type):
        yield from _fields(value)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    own = type(value).__module__.startswith("aiomailbox.")
    fields = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                fields[name] = getattr(value, name)
    yield from (("" if own else f"attribute {name!r}", fields[name]) for name in fields)


@dataclass(frozen=True, slots=True)
class Shipment:
    """The job as all of its workers get it, once.

    Attributes:
        graph: The job; what stays in the parent has no factory.
        config: Its settings.
        placement: Which peer runs which tasks.
        seed: Of the job's random sources.
        job_id: 16 bytes that name the job to its peers.
        has_arrow: Whether runs of records may be Arrow's.
        record_types: The classes that records may have, and hints that say under which
            names some were saved; filled in by `pack`.
    """

    graph: JobGraph
    config: JobConfig
    placement: Placement
    seed: int
    job_id: bytes
    has_arrow: bool
    record_types: tuple[Any, ...] = ()


class _FlatGraph(NamedTuple):
    """A graph that can be pickled: as it is, each node leads to the next, too deep.

    Attributes:
        graph: The graph; its nodes have no edges.
        edges: Those between them, each behind the earlier ones of its source.
        inputs: For each node the numbers of its ``in_edges``.
    """

    graph: JobGraph
    edges: list[Edge]
    inputs: list[list[list[int]]]


def pack(
    shipment: Shipment, *, for_parent: bool = False
) -> tuple[Shipment, bytes, list[RateLimit]]:
    """Return a shipment, complete now, as bytes too, and the limits that those name.

    Args:
        shipment: The job.
        for_parent: Whether a process gets it that is to be the job's parent, and needs
            sources and sinks.

    Raises:
        NotShippableError: If an operator cannot be pickled; names it and what of it.
        MissingExtraError: If cloudpickle is not installed.
    """
    flat = _flattened(shipment.graph, shipment.placement, for_parent=for_parent)
    limits: list[RateLimit] = []
    # Found while functions are pickled: what they name is what records may be.
    types = RecordTypes()
    # Sources of the parent are not sent, and their records are.
    for vertex in shipment.graph.vertices:
        for kind in getattr(vertex.head.transformation.source, "record_types", ()):
            types.look_at(kind)
    try:
        payload = _dumps([flat, replace(shipment, graph=None)], limits, types)  # type: ignore[arg-type]
        complete = _with_types(shipment, types.found)
        return complete, payload, limits
    except MissingExtraError:
        raise
    except Exception as error:
        _blame(flat, error)
        config = why_unpicklable(shipment.config, _probe) or str(error)
        raise NotShippableError("job settings", None, config) from error


def unpack(payload: bytes, limits: list[RateLimit]) -> Shipment:
    """Return the shipment that `pack` made; runs the code that is in it."""
    unpickler = _Unpickler(io.BytesIO(payload), limits)
    flat, shipment = unpickler.load()
    found: Shipment = shipment
    # A second pickle of one pickler: a class is the same as where functions name it.
    named: list[tuple[type, str]] = unpickler.load()
    for kind, name in named:
        # Cloudpickle forgets in which function a class was defined.
        if kind.__qualname__ != name:
            kind.__qualname__ = name
    complete = _with_types(found, [kind for kind, _ in named])
    return replace(complete, graph=_graph(flat))


def _with_types(shipment: Shipment, found: Iterable[type]) -> Shipment:
    hints = state_name_hints(shipment.config.state_names)
    return replace(shipment, record_types=(*found, *hints))


def pickled(value: Any) -> bytes:
    """Return a value for `pickle.loads` in a worker."""
    return _dumps(value, [])


def _dumps(
    value: Any, limits: list[RateLimit], types: RecordTypes | None = None
) -> bytes:
    try:
        import cloudpickle
    except ImportError as error:
        raise MissingExtraError("Processes", "processes") from error
    # By identity, also in containers: a limit that two operators share stays one.
    numbers: dict[int, int] = {}

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def persistent_id(self, obj: Any) -> int | None:
            if type(obj) is not RateLimit:
                return None
            number = numbers.setdefault(id(obj), len(limits))
            if number == len(limits):
                limits.append(obj)
            return number

        def reducer_override(self, obj: Any) -> Any:
            modules.look_at(obj)
            if types is not None:
                types.look_at(obj)
            if isinstance(obj, CodeType):
                # It leaves out the file, and an error has to name the user's line.
                make, arguments = self.dispatch_table[CodeType](obj)
                return _code_of_file, (obj.co_filename, make, arguments)
            reduced = super().reducer_override(obj)
            if type(obj) is StructMeta and reduced is not NotImplemented:
                return _reduced_struct(obj, *reduced)
            return reduced

    output = io.BytesIO()
    with ModulesByValue(cloudpickle) as modules:
        pickler = Pickler(output, protocol=pickle.HIGHEST_PROTOCOL)
        pickler.dump(value)
        if types is not None:
            types.is_complete = True
            # A second pickle of the same pickler, so that classes are not sent twice.
            pickler.dump([(kind, kind.__qualname__) for kind in types.found])
    return output.getvalue()


def _code_of_file(
    file: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]
) -> CodeType:
    return make(*arguments).replace(co_filename=file)


def _reduced_struct(
    kind: Any, make: Any, arguments: Any, state: Any, *others: Any
) -> tuple[Any, ...]:
    """Let a class of msgspec be made with its fields.

    Cloudpickle makes a class without attributes, and sets them afterwards, so that they
    may refer to the class. Msgspec looks for fields only while a class is made.
    """
    own = vars(kind).get("__annotations__", {})
    fields = [field for field in msgspec.structs.fields(kind) if field.name in own]
    parameters = inspect.signature(kind).parameters
    config = kind.__struct_config__
    settings = {name: getattr(config, name) for name in dir(config) if name[0] != "_"}
    settings["kw_only"] = any(
        parameters[field.name].kind is inspect.Parameter.KEYWORD_ONLY
        for field in fields
    )
    build = functools.partial(
        _struct,
        fields=[_field_as_made(field) for field in fields],
        has_post_init="__post_init__" in vars(kind),
        settings=settings,
    )
    attributes, slots = state
    # Text would be looked up in the program of the worker.
    types = {**own, **{field.name: field.type for field in fields}}
    state = ({**attributes, "__annotations__": types}, slots)
    # Cloudpickle's first argument is the metaclass.
    return make, (build, *arguments[1:]), state, *others


def _field_as_made(field: msgspec.structs.FieldInfo) -> tuple[str, dict[str, Any]]:
    given = {"name": field.encode_name}
    for what in ("default", "default_factory"):
        value = getattr(field, what)
        if value is not msgspec.NODEFAULT:
            given[what] = value
    return field.name, given


def _struct(
    name: str,
    bases: tuple[type, ...],
    namespace: dict[str, Any],
    *,
    fields: list[tuple[str, dict[str, Any]]],
    has_post_init: bool,
    settings: dict[str, Any],
) -> type:
    """Make a class of msgspec; cloudpickle sets its methods afterwards."""
    made: type

    def post_init(self: Any) -> None:
        # Msgspec calls for good the one that the class has while it is made.
        vars(made)["__post_init__"](self)

    namespace["__annotations__"] = {field: Any for field, _ in fields}
    namespace |= {field: msgspec.field(**given) for field, given in fields}
    if has_post_init:
        namespace["__post_init__"] = post_init
    made = StructMeta(name, bases, namespace, **settings)
    return made


class _Unpickler(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, limits: list[RateLimit]) -> None:
        super().__init__(source)
        self._limits = limits

    def persistent_load(self, pid: Any) -> RateLimit:
        return self._limits[pid]


def _flattened(
    graph: JobGraph, placement: Placement, *, for_parent: bool
) -> _FlatGraph:
    bare: dict[int, Node] = {}
    for vertex in graph.vertices:
        is_here = for_parent or placement.peers[vertex.id][0] != PARENT
        for node in vertex.nodes:
            item = _bare(
                node.transformation, keep_factory=is_here, keep_ends=for_parent
            )
            bare[node.index] = replace(
                node, transformation=item, in_edges=[], out_edges=[]
            )
    edges = [edge for node in graph.nodes for edge in node.out_edges]
    numbers = {id(edge): number for number, edge in enumerate(edges)}
    vertices = [
        JobVertex(vertex.id, [bare[node.index] for node in vertex.nodes])
        for vertex in graph.vertices
    ]
    return _FlatGraph(
        replace(graph, vertices=vertices),
        [
            replace(
                edge, source=bare[edge.source.index], target=bare[edge.target.index]
            )
            for edge in edges
        ],
        [
            [[numbers[id(edge)] for edge in united] for united in node.in_edges]
            for node in graph.nodes
        ],
    )


def _bare(
    item: Transformation, *, keep_factory: bool, keep_ends: bool
) -> Transformation:
    """Return a transformation without its neighbours; its factory has the source."""
    return replace(
        item,
        inputs=[],
        factory=item.factory if keep_factory else _absent,
        source=item.source if keep_ends else None,
        sink=item.sink if keep_ends else None,
        record_fields=None,
    )


def _absent() -> NoReturn:
    raise AssertionError("an operator of the parent was built in a worker")


def _graph(flat: _FlatGraph) -> JobGraph:
    for edge in flat.edges:
        edge.source.out_edges.append(edge)
    for node, inputs in zip(flat.graph.nodes, flat.inputs, strict=True):
        node.in_edges = [[flat.edges[number] for number in one] for one in inputs]
    return flat.graph


def _blame(flat: _FlatGraph, error: Exception) -> None:
    """Raise for the first operator, or the first way between two, that is to blame."""
    # The first one in the pipeline: what comes after it often fails of the same reason.
    suspects: list[tuple[Node, Any]] = [
        *((node, node.transformation.factory) for node in flat.graph.nodes),
        *((edge.target, edge.partitioner) for edge in flat.edges),
    ]
    for node, part in suspects:
        problem = why_unpicklable(part, _probe)
        if problem is not None:
            uid = node.transformation.uid
            raise NotShippableError(node.name, uid, problem) from error


def _probe(value: Any) -> None:
    _dumps(value, [])
