"""Makes a failing model shorter: statements and parts of expressions go as long as it still fails in the same way."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import rematic

from .decisions import plans_for, single_plans
from .harness import Outcome, compare, plain_run, trace_of

Edit = Callable[[ast.Module], bool]


def shrunk(source: str, outcome: Outcome) -> tuple[str, Outcome]:
    """The shortest text found that fails like this one, and how it fails."""
    failure = Failure(outcome)
    tree = ast.parse(source)
    found = failure.of(ast.unparse(tree))
    if found is None:
        return source, outcome
    shorter, tried = True, {ast.unparse(tree)}
    while shorter:
        shorter = False
        for edit in edits(tree):
            changed = copy.deepcopy(tree)
            if not edit(changed):
                continue
            text = ast.unparse(ast.fix_missing_locations(changed))
            still = failure.of(text) if text not in tried else None
            tried.add(text)
            if still is not None:
                tree, found, shorter = changed, still, True
    return ast.unparse(tree), found


class Failure:
    """What is looked for in shorter models."""

    def __init__(self, outcome: Outcome) -> None:
        self._kind = outcome.kind
        # Gradients or state; or the error's class.
        self._what = outcome.what.partition(":")[0]
        # The module whose region failed last; as long as there is one, no other plan is tried.
        self._module = ""

    def of(self, source: str) -> Outcome | None:
        """How a model fails in this way under any of some plans, if it does."""
        expected = plain_run(source)
        if isinstance(expected, Outcome):
            return None
        try:
            document = trace_of(source)
        except Exception:
            return None
        for module, plan in self._plans(document):
            outcome = compare(source, plan, expected)
            if outcome.kind == self._kind and outcome.what.startswith(self._what):
                self._module = module
                return outcome
        return None

    def _plans(self, document: dict[str, Any]) -> Iterator[tuple[str, rematic.Plan]]:
        single = list(single_plans(document))
        before = [pair for pair in single if pair[0] == self._module]
        if before:
            yield from before
            return
        yield from single
        for plan in plans_for(document, Random(0), 6):
            yield "", plan


def edits(tree: ast.Module) -> Iterator[Edit]:
    """Ways to shorten a text, the boldest first. They are for the tree as it is now and for shorter ones; one that finds
    nothing any more says so."""
    lengths = [len(body) for body in _bodies(tree)]
    for size in (8, 4, 2, 1):
        for index, length in reversed(list(enumerate(lengths))):
            for start in reversed(range(0, length if length >= size else 0, size)):
                yield lambda t, index=index, start=start, size=size: _remove(t, index, start, size)
    for index, length in reversed(list(enumerate(lengths))):
        for at in reversed(range(length)):
            yield lambda t, index=index, at=at: _unwrap(t, index, at)
            yield lambda t, index=index, at=at: _rename(t, index, at)
    for index in reversed(range(sum(1 for _ in _expressions(tree)))):
        for part in (0, 1):
            yield lambda t, index=index, part=part: _simplify(t, index, part)


def _bodies(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for field in ("body", "orelse"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                yield body


def _body(tree: ast.Module, index: int) -> list[ast.stmt]:
    return next((body for at, body in enumerate(_bodies(tree)) if at == index), [])


def _remove(tree: ast.Module, index: int, start: int, size: int) -> bool:
    body = _body(tree, index)
    if start >= len(body) or (len(body) == 1 and isinstance(body[0], ast.Pass)):
        return False
    del body[start : start + size]
    if not body and index:
        body.append(ast.Pass())
    return True


def _unwrap(tree: ast.Module, index: int, at: int) -> bool:
    """An `if`, `with` or `for` becomes what is in it."""
    body = _body(tree, index)
    if at >= len(body) or not isinstance(body[at], (ast.If, ast.With, ast.For)):
        return False
    body[at : at + 1] = body[at].body
    return True


def _rename(tree: ast.Module, index: int, at: int) -> bool:
    """`a = b` goes, and what follows says `b`."""
    body = _body(tree, index)
    if at >= len(body):
        return False
    match body[at]:
        case ast.Assign(targets=[ast.Name(id=old)], value=ast.Name(id=new)):
            for statement in body[at + 1 :]:
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name) and node.id == old:
                        node.id = new
            return _remove(tree, index, at, 1)
    return False


def _expressions(tree: ast.Module) -> Iterator[tuple[ast.AST, str, Any]]:
    """Expressions that have parts, and where they stand."""
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            for at, item in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(item, (ast.BinOp, ast.Call, ast.BoolOp, ast.IfExp)) and not isinstance(node, ast.withitem):
                    yield node, field, (at if isinstance(value, list) else None)


def _simplify(tree: ast.Module, index: int, part: int) -> bool:
    """An expression becomes one of its parts."""
    place = next((place for at, place in enumerate(_expressions(tree)) if at == index), None)
    if place is None:
        return False
    node, field, at = place
    value = getattr(node, field) if at is None else getattr(node, field)[at]
    parts = _parts(value)
    if part >= len(parts):
        return False
    if at is None:
        setattr(node, field, parts[part])
    else:
        getattr(node, field)[at] = parts[part]
    return True


def _parts(value: ast.expr) -> list[ast.expr]:
    if isinstance(value, ast.BinOp):
        return [value.left, value.right]
    if isinstance(value, ast.BoolOp):
        return value.values
    if isinstance(value, ast.IfExp):
        return [value.body, value.orelse]
    if isinstance(value, ast.Call):
        owner = [value.func.value] if isinstance(value.func, ast.Attribute) else []
        return [*value.args, *owner]
    return []
