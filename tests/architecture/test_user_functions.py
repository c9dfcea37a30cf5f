"""No user's function is called from where its StopIteration would be taken for the end.

``list(map(function, values))`` ends silently at the value for which ``function`` raises
``StopIteration``; so does whatever else asks a function for its next item. There only
functions of our own and of Python are allowed. A comprehension passes it on.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

import pytest

# What ends where the function that it calls raises StopIteration, and the function's
# place among the arguments.
LAZY = {
    "map": 0,
    "filter": 0,
    "starmap": 0,
    "takewhile": 0,
    "dropwhile": 0,
    "filterfalse": 0,
    "accumulate": 1,
    "groupby": 1,
}
# Methods of Python's own types that call nobody.
METHODS = {"get", "values", "format", "__eq__", "__getitem__"}
# Our own functions that are known to a module by another name.
OURS = {
    ("aiomailbox/columnar/encode.py", "self.fit"),
    ("aiomailbox/columnar/evaluator.py", "kind or record_kind"),
    ("aiomailbox/columnar/forms.py", "new"),
    ("aiomailbox/connectors/sql/postgres.py", "self._column"),
    ("aiomailbox/connectors/spark/frame_checks.py", "make"),
    ("aiomailbox/mailbox/task_mailbox.py", "waiter.wants"),
    # Looks at how many values came out, and goes on behind them.
    ("aiomailbox/records/run.py", "function"),
    ("aiomailbox/state/rocksdb/store.py", "self._number"),
}
# Where an end of iteration is caught, and what is meant by it.
CAUGHT = {
    "aiomailbox/connectors/sql/postgres.py": "the steps of a transaction have ended",
    "aiomailbox/connectors/sql/sqlite.py": "the steps of a transaction have ended",
    "aiomailbox/mailbox/processor.py": "the default action raised it: a failure",
    "aiomailbox/mailbox/mail.py": "the mail raised it: a failure",
    "aiomailbox/operators/stateless/operators.py": "an asynchronous generator has ended",
}


def lazily_called(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the functions that are handed to what calls them lazily."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if isinstance(node.func, ast.Attribute) and _is_itertools(node.func):
            name = node.func.attr
        if name == "iter" and len(node.args) == 2:
            yield node.args[0]
        if name not in LAZY:
            continue
        given = dict(enumerate(node.args)).get(LAZY[name])
        given = given or next((k.value for k in node.keywords if k.arg == "key"), None)
        if given is not None:
            yield given


def _is_itertools(function: ast.Attribute) -> bool:
    return isinstance(function.value, ast.Name) and function.value.id == "itertools"


def own_names(tree: ast.Module) -> set[str]:
    """Return what a module imports and defines at its top, and Python's built-ins."""
    names = set(dir(builtins))
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {
                (alias.asname or alias.name).split(".")[0] for alias in node.names
            }
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def is_harmless(function: ast.expr, own: set[str]) -> bool:
    if isinstance(function, ast.Name):
        return function.id in own
    if isinstance(function, ast.Call):
        called = function.func
        if isinstance(called, ast.Name) and called.id == "partial":
            return is_harmless(function.args[0], own)
        return isinstance(called, ast.Name) and called.id == "itemgetter"
    if isinstance(function, ast.Lambda):
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        return all(is_harmless(call.func, own) for call in calls)
    if isinstance(function, ast.Attribute):
        root = function.value
        while isinstance(root, ast.Attribute):
            root = root.value
        of_module = isinstance(root, ast.Name) and root.id in own
        return of_module or function.attr in METHODS
    return False


def strangers(path: str, tree: ast.Module) -> list[str]:
    own = own_names(tree)
    return [
        f"{path}:{function.lineno}: {ast.unparse(function)}"
        for function in lazily_called(tree)
        if not is_harmless(function, own) and (path, ast.unparse(function)) not in OURS
    ]


def test_no_function_of_the_users_is_called_from_inside_a_map(
    trees: dict[str, ast.Module],
) -> None:
    found = [place for path, tree in trees.items() for place in strangers(path, tree)]
    assert found == []


def test_an_end_of_iteration_is_caught_only_where_it_is_known_whose_it_is(
    trees: dict[str, ast.Module],
) -> None:
    catching = {
        path
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and node.type is not None
        for name in ast.walk(node.type)
        if isinstance(name, ast.Name)
        and name.id in {"StopIteration", "StopAsyncIteration"}
    }
    assert catching == set(CAUGHT)


@pytest.mark.parametrize(
    "source",
    [
        "keys = list(map(self._key, values))",
        "keys = list(map(key, values))",
        "kept = filter(function.wants, values)",
        "groups = itertools.groupby(values, key=self.key)",
        "sums = accumulate(values, add)",
        "items = iter(self.poll, None)",
        "results = list(map(partial(self._get_result, 1), values))",
        "keys = list(map(lambda value: self.key(value), values))",
    ],
)
def test_the_rule_sees_a_function_that_may_be_the_users(source: str) -> None:
    assert strangers("module.py", ast.parse(f"def read(self, key, add):\n    {source}"))
