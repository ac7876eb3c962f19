"""Uses of states that do nothing: ``self.recent[user].append(page)``, ``self.count.value = 1``, ``self.count is None``.

A read of a state returns a copy, so changing it does not change the state. That is right for a function that sorts a
list before it yields it; a line that changes an unreachable copy is a mistake. Such lines are found in the source of
the function, once and before the first row, so that reads cost nothing. So are assignments to attributes of a state,
and comparisons of a state by identity, which no method of the state can refuse. Without source code, nothing is found.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Literal, NamedTuple

from keyed.errors import StateDefinitionError
from keyed.job.state import ListState, MapState, State, ValueState

#: Methods of lists, dictionaries and sets that change them.
_CHANGES = {"append", "extend", "insert", "remove", "clear", "sort", "reverse", "update", "add", "discard"}
_CHANGES |= {"setdefault", "popitem", "pop"}
#: Methods of states that return a copy of something that can change.
_READS: dict[type[State], set[str]] = {ValueState: {"value"}, ListState: {"get"}, MapState: {"get", "setdefault"}}
_REMEDIES: dict[type[State], str] = {
    ValueState: "value = self.{0}.value(), change it, self.{0}.update(value)",
    ListState: "values = self.{0}.get(), change it, self.{0}.update(values)",
    MapState: "value = self.{0}.get(key, ...), change it, self.{0}[key] = value",
}
_GETTERS = {"get_state": ValueState, "get_list_state": ListState, "get_map_state": MapState}


class _Mistake(NamedTuple):
    """A statement that changes a copy, or uses a state as if it were its value.

    Attributes:
        kind: ``lost`` for a change of a copy; ``set`` for an assignment and ``compared`` for a comparison of a state.
        attribute: The state's attribute.
        read: How the copy was read: ``[]`` or the name of a method.
        code: The statement or expression.
        line: Its line in the method.
    """

    kind: Literal["lost", "set", "compared"]
    attribute: str
    read: str
    code: str
    line: int


def check_changes(function: object, states: Mapping[str, State]) -> None:
    """Check that no method of a function loses a change of a state, or compares a state by identity.

    Args:
        function: The function.
        states: Its declared states by attribute.

    Raises:
        StateDefinitionError: One does.
    """
    for cls in type(function).__mro__:
        if cls.__module__.partition(".")[0] in ("keyed", "windows", "builtins", "typing"):
            continue
        for name, member in vars(cls).items():
            if not inspect.isfunction(member):
                continue
            for mistake in _mistakes(_code(member)):
                remedy = _remedy(mistake, states, cls)
                if remedy:
                    line = member.__code__.co_firstlineno + mistake.line - 1
                    raise StateDefinitionError(f"{cls.__name__}.{name}, line {line}: {mistake.code} {remedy}")


def _remedy(mistake: _Mistake, states: Mapping[str, State], cls: type) -> str:
    """Return what is wrong with a statement and its remedy; an empty text if its attribute is no such state."""
    attribute = mistake.attribute
    if mistake.kind == "lost":
        kind = _kind(states, attribute, cls)
        if kind is None or mistake.read not in ("[]", *_READS[kind]):
            return ""
        what = f"changes a copy of the content of {kind.kind} state {attribute!r}, and the change would be lost"
        return f"{what}; store it: {_REMEDIES[kind].format(attribute)}"
    state = states.get(attribute)
    if state is None:
        return ""
    if mistake.kind == "set":
        what = f"would set an attribute of {state.kind} state {attribute!r}, and store nothing"
        return f"{what}; write the value with {state.writing}"
    what = f"compares {state.kind} state {attribute!r} itself, which is never its value"
    return f"{what}; read the value with {state.reading}"


def _kind(states: Mapping[str, State], attribute: str, cls: type) -> type[State] | None:
    """Return the kind of state of an attribute, ``None`` for other attributes."""
    state = states.get(attribute)
    if state is not None:
        if isinstance(state, ValueState) and state.in_place:
            return None
        return next((kind for kind in _READS if isinstance(state, kind)), None)
    opened = vars(cls).get("open")
    return _obtained(_code(opened)).get(attribute) if inspect.isfunction(opened) else None


def _code(method: FunctionType) -> CodeType:
    """Return the code of a method: unlike the method, a cached one keeps no class and no variables alive."""
    return getattr(inspect.unwrap(method), "__code__", method.__code__)


def _tree(method: CodeType) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    return tree if isinstance(tree, ast.FunctionDef) and tree.args.args else None


@lru_cache(maxsize=512)
def _obtained(method: CodeType) -> dict[str, type[State]]:
    """Return the states that ``open`` keeps: ``self.count = context.get_state(...)``."""
    tree = _tree(method)
    states: dict[str, type[State]] = {}
    for node in ast.walk(tree) if tree is not None else ():
        match node:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(), attr=attribute)],
                value=ast.Call(func=ast.Attribute(attr=getter)),
            ) if getter in _GETTERS:
                states[attribute] = _GETTERS[getter]
    return states


@lru_cache(maxsize=512)
def _mistakes(method: CodeType) -> tuple[_Mistake, ...]:
    """Return the uses of states as their values in a method, and after them the changes of copies that are not kept.

    The former are assignments to attributes of attributes of ``self``, and comparisons of these by identity.
    """
    tree = _tree(method)
    if tree is None:
        return ()
    this = tree.args.args[0].arg
    problems = []
    for node in ast.walk(tree):
        used: list[ast.expr] = []
        kind: Literal["set", "compared"] = "set"
        match node:
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant() as right]):
                used, kind = [left, right], "compared"
            case ast.Assign(targets=targets):
                used = [each.value for each in targets if isinstance(each, ast.Attribute)]
            case ast.AugAssign(target=ast.Attribute(value=target)):
                used = [target]
        for each in used:
            match each:
                case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == this:
                    problems.append(_Mistake(kind, attribute, "", ast.unparse(node), getattr(node, "lineno", 1)))
    changed = [(node, target) for node in ast.walk(tree) for target in _changed(node)]
    kept = _copies(tree, this, {id(target) for _, target in changed})
    for node, target in changed:
        read = kept.get(target.id) if isinstance(target, ast.Name) else _read(target, this)
        if read is not None:
            problems.append(_Mistake("lost", *read, ast.unparse(node), getattr(node, "lineno", 1)))
    return tuple(problems)


def _changed(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions whose value a statement only changes."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr=method))) if method in _CHANGES:
            yield target
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            yield from (each.value for each in targets if isinstance(each, ast.Subscript | ast.Attribute))
        case ast.AugAssign(target=ast.Subscript(value=target) | ast.Attribute(value=target) | (ast.Name() as target)):
            yield target


def _read(node: ast.expr, this: str) -> tuple[str, str] | None:
    """Return the attribute of ``this`` from which an expression reads an item, and the method of reading."""
    match node:
        case ast.Subscript(value=state):
            method = "[]"
        case ast.Call(func=ast.Attribute(value=state, attr=method)):
            pass
        case _:
            return None
    match state:
        case ast.Call(func=ast.Attribute(value=inner, attr="namespace")):
            state = inner
    match state:
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == this:
            return attribute, method
    return None


def _copies(tree: ast.FunctionDef, this: str, changed: set[int]) -> dict[str, tuple[str, str]]:
    """Return the local names that only hold a copy read from a state, and are only used to change it."""
    reads: dict[str, list[tuple[str, str] | None]] = {}
    assigned: set[int] = set()
    aliases: list[tuple[str, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                names = [target for target in targets if isinstance(target, ast.Name)]
                if len(names) < len(targets):
                    continue
                assigned |= {*map(id, names)}
                if isinstance(value, ast.Name):
                    assigned.add(id(value))
                    names.append(value)
                else:
                    reads.setdefault(names[0].id, []).append(_read(value, this))
                aliases += [(names[0].id, other.id) for other in names[1:]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in changed and id(node) not in assigned:
            reads[node.id] = [None]
        elif isinstance(node, ast.arg | ast.Global | ast.Nonlocal):
            for name in [node.arg] if isinstance(node, ast.arg) else node.names:
                reads[name] = [None]
    # Names of one object are used together.
    for one, other in aliases * len(aliases):
        reads[one] = reads[other] = [*{*reads.get(one, ()), *reads.get(other, ())}]
    return {name: each[0] for name, each in reads.items() if each and each[0] is not None and None not in each}
