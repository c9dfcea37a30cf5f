"""Methods that take field names: what they contribute to the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from aiomailbox import connectors
from aiomailbox.api.build import check_name, key_check, known_fields
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.eventtime.strategy import WatermarkStrategy
from aiomailbox.graph.describe import rows_from
from aiomailbox.graph.transformation import FunctionInfo, Origin
from aiomailbox.operators.aggregates.functions import with_expressions
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.core.failures import OnError, check_on_error
from aiomailbox.operators.core.fields import RecordFields, is_expression
from aiomailbox.operators.core.operator import RowsNote, noting
from aiomailbox.operators.core.user_code import describe


def expression_filter(
    expression: Any, on_error: OnError, origins: list[Origin]
) -> tuple[Any, dict[str, Any]]:
    """Return the factory and the facts of a filter by an expression.

    Raises:
        RecordTypeError: If the records are known to have no such field.
    """
    policy, fields = check_on_error(on_error), known_fields(origins)
    factory = partial(connectors.ExpressionFilter, expression, on_error=policy)
    factory()
    if fields is not None:
        connectors.check_reads(expression, fields.names)
    return factory, {
        "functions": (_described(expression),),
        "record_fields": fields,
        "takes_columns": True,
    }


def rows_for_times(strategy: WatermarkStrategy) -> str:
    """Return the timestamp assigner that needs rows; "" if event times are a field."""
    assigner = strategy.assigner
    return describe(assigner) if callable(assigner) else ""


def asks_for_rows(key: Any) -> str:
    """Return the key function that needs rows; "" if the key is fields."""
    return "" if getattr(key, "fields", ()) else f"key function {describe(key)}"


def checked_keys(
    key: Any, on_error: OnError, origins: list[Origin]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the factory and the facts of a check of keys.

    Args:
        key: What reads a record's key.
        on_error: What to do with a record without a good one.
        origins: Where the records come from.
    """
    if rows_from(origins) is not None:
        return partial(key_check, key, on_error), {}
    if asking := asks_for_rows(key):
        return partial(key_check, key, on_error), {"asks_for_rows": asking}
    factory = partial(connectors.ColumnarKeyCheck, key, on_error)
    return factory, {"takes_columns": True}


def aggregating(
    make: Callable[..., Any], aggregate: Any, origins: list[Origin]
) -> Callable[..., Any]:
    """Return the factory of an operator with an aggregate.

    Args:
        make: Makes it of ``aggregate``.
        aggregate: What is computed; each operator evaluates its expressions itself.
        origins: Where the records come from.

    Raises:
        RecordTypeError: If the records are known to lack a field of an expression.
    """
    found: list[Any] = []

    def see(selector: Any) -> Any:
        found.append(selector)
        return selector

    with_expressions(aggregate, see)
    if not found:
        return partial(make, aggregate=aggregate)
    fields = known_fields(origins)
    for selector in found:
        connectors.check_expression(selector.expression, "where")
        if fields is not None:
            connectors.check_reads(selector.expression, fields.names)
    return partial(connectors.conditioned, make, aggregate)


def keyed_form(key: Any, aggregate: Any, origins: list[Origin]) -> dict[str, Any]:
    """Return the facts for the graph about an aggregate's form: columns or rows.

    Args:
        key: What reads a record's key; None for none.
        aggregate: What is computed.
        origins: Where the records come from.
    """
    if rows_from(origins) is not None:
        return {}
    if key is not None and (asking := asks_for_rows(key)):
        return {"asks_for_rows": asking}
    asking = connectors.needs_rows(aggregate)
    if asking:
        return {"asks_for_rows": asking}
    return {"takes_columns": True, "rows_note": RowsNote()}


def window_form(
    key: Any,
    operator: Any,
    settings: Mapping[str, Any],
    work: Mapping[str, Any],
    origins: list[Origin],
) -> dict[str, Any]:
    """Return the facts for the graph about the form of windows, as `keyed_form`.

    Args:
        key: What reads a record's key; None for none.
        operator: The one for rows.
        settings: What was said of the windows: ``trigger`` and others.
        work: What is done with a window: ``aggregate`` and others.
        origins: Where the records come from.
    """
    if rows_from(origins) is not None:
        return {}
    if (function := work.get("window_function")) is not None:
        return {"asks_for_rows": describe(getattr(function, "process", function))}
    if "aggregate" not in work:
        return {}
    from aiomailbox.connectors import windows_asking

    if asking := windows_asking(operator):
        return {"asks_for_rows": asking}
    form = keyed_form(key, work["aggregate"], origins)
    late = settings.get("late_tag")
    if form.get("takes_columns") and late is not None:
        form["columns_aside"] = frozenset({late})
    return form


def projected(
    kind: str,
    origins: list[Origin],
    *,
    expressions: Mapping[str, Any] | None = None,
    on_error: OnError,
    **given: Any,
) -> tuple[Any, dict[str, Any]]:
    """Return the factory and the facts of select, with_columns, drop or rename.

    Args:
        kind: The class of the projection.
        origins: Where the records come from.
        expressions: What it computes, by new names.
        on_error: What to do with a record for which that fails.
        **given: The other arguments of the class: the fields that it names.

    Raises:
        InvalidArgumentError: If a new name cannot be that of a field of the records.
        RecordTypeError: If the records are known to have no such field.
        WrongTypeError: If a computed field is not an expression.
    """
    policy, fields = check_on_error(on_error), known_fields(origins)
    computed = {
        check_name(name, "name"): connectors.check_expression(value, name)
        for name, value in (expressions or {}).items()
    }
    given = {name: value for name, value in given.items() if value}
    projection = getattr(connectors, kind)(expressions=computed, **given)
    factory = partial(connectors.ProjectionOperator, projection, on_error=policy)
    factory()
    result = None
    if fields is not None:
        for value in computed.values():
            connectors.check_reads(value, fields.names)
        plan = projection.plan(fields.names)
        result = _plain_fields(fields, [name for name, _ in plan], "name")
    return factory, {
        "functions": tuple(map(_described, computed.values())),
        "record_fields": result,
        "takes_columns": True,
    }


def selected_pairs(
    make: partial[Any],
    columnar: str,
    asking: str,
    names: tuple[Any, ...],
    named: Mapping[str, Any],
    keys: tuple[Any, Any],
    origins: tuple[list[Origin], list[Origin]],
    on_error: OnError,
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the factory and the facts of a join whose pairs are selected from.

    Args:
        make: Makes the operator that emits pairs, with the class for rows first.
        columnar: The name of the class for columns.
        asking: Which setting of the join needs rows; "" if columns will do.
        names: The fields to keep.
        named: New names, each with a field's name or an expression.
        keys: What reads the keys of the left and of the right records.
        origins: Where these come from.
        on_error: What to do with a pair for which an expression fails.

    Raises:
        InvalidArgumentError: If nothing is named, or a name would be there twice.
        RecordTypeError: If it is known that there is no such field, or two.
        WrongTypeError: If something is neither a name nor an expression.
    """
    policy = check_on_error(on_error)
    parts = [getattr(key, "fields", ()) for key in keys]
    same = {left for left, right in zip(*parts, strict=False) if left == right}
    fields = connectors.pair_fields(names, named, same)
    known = [known_fields(each) for each in origins]
    fields.check(*(None if each is None else each.names for each in known))
    result = None
    if known[0] is not None:
        result = _plain_fields(known[0], fields.names, "names")
    form = _join_form(keys, origins, asking)
    if form.get("takes_columns"):
        kind, *args = make.args
        del kind
        make = partial(make.func, getattr(connectors, columnar), *args, **make.keywords)
        make = noting(make, form["rows_note"])
    factory = partial(connectors.selecting, make, fields, policy)
    return factory, {
        **form,
        "functions": tuple(map(_described, fields.expressions)),
        "record_fields": result,
    }


def _join_form(
    keys: tuple[Any, Any], origins: tuple[list[Origin], list[Origin]], asking: str
) -> dict[str, Any]:
    """Return the facts for the graph about a join's form, as `keyed_form`."""
    if any(rows_from(each) is not None for each in origins):
        return {}
    asking = asking or asks_for_rows(keys[0]) or asks_for_rows(keys[1])
    if asking:
        return {"asks_for_rows": asking}
    return {"takes_columns": True, "rows_note": RowsNote()}


def async_form(into: Any, columns: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return what makes the operator of map_async, and its arguments for columns.

    Args:
        into: The name of the field for results; None if they replace records.
        columns: The fields that the function needs; None if that was not said.

    Raises:
        InvalidArgumentError: If there are columns, and no field for results.
        WrongTypeError: If the field's name is no string.
    """
    if into is None:
        if columns is not None:
            raise InvalidArgumentError(
                "columns",
                "without into= a result replaces the whole record",
                'Add into="name", or write select(...) before.',
            )
        return AsyncMapOperator, {}
    check_name(into, "into")
    return connectors.AsyncColumnOperator, {"into": into, "columns": columns}


def with_field(sample: Any, into: str | None, origins: list[Origin]) -> dict[str, Any]:
    """Return the facts for the graph about records that get a field more.

    Args:
        sample: The operator.
        into: The field's name; None if there is none.
        origins: Where the records come from.

    Raises:
        RecordTypeError: If it is known that they have the field, or lack another one.
    """
    if into is None:
        return {}
    fields = known_fields(origins)
    if fields is None:
        return {"takes_columns": True}
    sample.check_fields(fields.names)
    return {
        "takes_columns": True,
        "record_fields": _plain_fields(fields, (*fields.names, into), "into"),
    }


def field_names(names: tuple[Any, ...]) -> tuple[str, ...]:
    """Return names of fields, if each is one, and none comes twice.

    Raises:
        InvalidArgumentError: If one comes twice, or there is none.
        WrongTypeError: If one is no string.
    """
    if not names:
        raise InvalidArgumentError(
            "names", "no field is given", 'Name the fields, for example "price".'
        )
    for name in names:
        if is_expression(name):
            raise WrongTypeError(
                "names",
                f"{name!r} is an expression without a name",
                "Give it one: total=...",
            )
        if isinstance(name, list | tuple | set | frozenset):
            raise WrongTypeError(
                "names",
                f"{name!r} is a {type(name).__name__} and not a name",
                'Write the names one by one: "user", "price".',
            )
        check_name(name, "names")
        if names.count(name) > 1:
            raise InvalidArgumentError(
                "names", f"field {name!r} is named twice", "Remove one."
            )
    return names


def selected(names: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``select(*names, **named)`` says, as arguments for `projected`.

    Raises:
        InvalidArgumentError: If no field is named, or two would have the same name.
        WrongTypeError: If a name is no string.
    """
    field_names((*names, *named))
    renamed = {
        name: check_name(value, name) if isinstance(value, str) else None
        for name, value in named.items()
    }
    computed = {name: named[name] for name, old in renamed.items() if old is None}
    return {"names": names, "named": renamed, "expressions": computed}


def check_renames(names: Any) -> dict[str, str]:
    """Return old and new names, if no two fields would get one name.

    Raises:
        InvalidArgumentError: If two would, or there are none.
        WrongTypeError: If it is no mapping of strings.
    """
    if not isinstance(names, Mapping):
        raise WrongTypeError(
            "names", f"{names!r} is not a mapping", 'Write {"old": "new"}.'
        )
    field_names(tuple(names))
    field_names(tuple(names.values()))
    return dict(names)


def _plain_fields(
    fields: RecordFields, names: Iterable[str], parameter: str
) -> RecordFields:
    """Return the fields of dicts and NamedTuples made of records.

    Args:
        fields: Those of the records.
        names: Those of what is made.
        parameter: Under which name a new one was given.

    Raises:
        InvalidArgumentError: If a new name cannot be that of a field.
    """
    for name in names:
        if name not in fields.names:
            fields.check_new(name, parameter)
    # A tuple has names of its own, too.
    readable = frozenset(dir(tuple)) | frozenset(dir(dict))
    return RecordFields(tuple(names), readable, fields.are_keys)


def _described(expression: Any) -> FunctionInfo:
    return FunctionInfo(str(expression), is_async=False)
