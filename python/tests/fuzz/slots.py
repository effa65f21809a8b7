"""Places that hold state: how one is made, read, and changed, as Python text.

In the texts `{e}` is the place (`box`, `self.table`, `SETTINGS`), `{n}` a number. Reading never fails, however the place
was changed. Tensors are only added: what is multiplied is saved by autograd, and then must not change.
"""

from __future__ import annotations

import dataclasses
from random import Random

NUMBERS = ("0.5", "0.75", "1.25", "1.5", "-0.5", "0.25", "1.75")


@dataclasses.dataclass(frozen=True)
class Form:
    """What a place may hold."""

    make: tuple[str, ...]
    reads: tuple[str, ...]
    # Changes of the object itself.
    changes: tuple[str, ...]
    # Changes that put another object in its place: not for arguments.
    replacements: tuple[str, ...]
    is_tensor: bool = False


def _object(make: str) -> Form:
    return Form(
        (make,),
        ("{e}.a", "sum({e}.b)", "{e}.a * len({e}.b)"),
        ("{e}.a = {n}", "{e}.a += 0.25", "{e}.b.append({n})", "{e}.b = [{n}]", "{e}.b.clear()"),
        ("{e} = " + make,),
    )


LIST = "[{n}, {n}, {n}]"
DICT = "{{'a': {n}, 'b': {n}}}"
NESTED = "{{'a': [{n}, {n}], 'b': {{'c': ({n}, [{n}])}}}}"
TENSOR = "torch.full((W,), {n})"
TENSORS = "[torch.full((W,), {n}), torch.full((T, 1), {n})]"

FORMS: dict[str, Form] = {
    "number": Form(("{n}",), ("{e}",), (), ("{e} = {n}", "{e} += 0.25", "{e} *= 0.5")),
    "list": Form(
        (LIST,),
        ("sum({e})", "({e} or [0.5])[0]", "({e} or [0.5])[-1]", "len({e}) * 0.25"),
        ("{e}.append({n})", "{e}[:1] = [{n}]", "{e}.clear()", "if {e}: {e}.pop()", "{e}.reverse()", "{e}[:] = [{n}]"),
        ("{e} = " + LIST, "{e} = {e} + [{n}]"),
    ),
    "dict": Form(
        (DICT,),
        ("{e}.get('a', 0.5)", "sum({e}.values())", "len({e}) * 0.25"),
        ("{e}['a'] = {n}", "{e}.pop('a', None)", "{e}.clear()", "{e}.update(b={n})", "{e}['c'] = {n}"),
        ("{e} = " + DICT,),
    ),
    "nested": Form(
        (NESTED,),
        ("sum({e}['a'])", "{e}['b']['c'][1][0]", "{e}['b']['c'][0]"),
        ("{e}['a'].append({n})", "{e}['b']['c'] = ({n}, [{n}])", "{e}['b']['c'][1][0] = {n}", "{e}['a'] = [{n}]"),
        ("{e} = " + NESTED,),
    ),
    "namespace": _object("types.SimpleNamespace(a={n}, b=[{n}])"),
    "dataclass": _object("Record({n}, [{n}])"),
    "object": _object("Thing({n}, [{n}])"),
    "slotted": Form(("Slotted({n})",), ("{e}.a", "{e}.value()"), ("{e}.a = {n}", "{e}.bump()"), ("{e} = Slotted({n})",)),
    "deque": Form(
        ("collections.deque([{n}, {n}], maxlen=3)",),
        ("sum({e})", "len({e}) * 0.25"),
        ("{e}.append({n})", "{e}.appendleft({n})", "{e}.clear()", "{e}.rotate()"),
        ("{e} = collections.deque([{n}])",),
    ),
    "set": Form(("{{1, 2}}",), ("len({e}) * 0.25", "max({e} | {{1}})"), ("{e}.add(5)", "{e}.clear()", "{e}.discard(2)"), ()),
    "numpy_array": Form(
        ("numpy.array([{n}, {n}])",),
        ("float({e}[0])", "float({e}.sum())"),
        ("{e}[0] = {n}", "{e}[:] *= 0.5", "{e}.fill({n})"),
        ("{e} = numpy.array([{n}, {n}])",),
    ),
    "iterator": Form(
        ("iter([{n}, {n}, {n}, {n}])", "itertools.cycle([{n}, {n}])"),
        ("next({e}, 0.5)",),
        ("next({e}, None)",),
        ("{e} = iter([{n}, {n}])",),
    ),
    "generator": Form(("(v for v in [{n}, {n}, {n}])",), ("next({e}, 0.5)",), ("next({e}, None)",), ()),
    "tensor": Form(
        (TENSOR, "torch.full((), {n})"),
        ("{e}",),
        ("{e}.add_({n})", "{e}.mul_({n})", "{e}.fill_({n})", "{e}.data = {e}.data * 0.5"),
        ("{e} = {e} * {n}", "{e} = " + TENSOR),
        is_tensor=True,
    ),
    "tensors": Form(
        (TENSORS,),
        ("sum({e})", "sum({e}[:1])"),
        ("{e}[:1] = [torch.full((W,), {n})]", "{e}[-1:] = []", "{e}.append(" + TENSOR + ")", "for t in {e}: t.mul_({n})"),
        ("{e} = " + TENSORS,),
        is_tensor=True,
    ),
    "tensor_dict": Form(
        ("{{'a': " + TENSOR + "}}",),
        ("sum({e}.values())", "{e}.get('a', 0.5)"),
        ("{e}['a'] = " + TENSOR, "{e}.pop('a', None)", "for t in {e}.values(): t.add_({n})"),
        ("{e} = {{'a': " + TENSOR + "}}",),
        is_tensor=True,
    ),
    "tensor_dataclass": Form(
        ("Record(" + TENSOR + ", [" + TENSOR + "])",),
        ("{e}.a", "sum({e}.b)"),
        ("{e}.a = " + TENSOR, "{e}.a.add_({n})", "{e}.b.clear()", "{e}.b.append(" + TENSOR + ")"),
        ("{e} = Record(" + TENSOR + ", [])",),
        is_tensor=True,
    ),
}
# What cannot be copied with a model, or would be another in each copy.
NOT_IN_MODELS = ("generator",)
NOT_BY_DEFAULT = ("iterator", "generator", "number")


@dataclasses.dataclass(frozen=True)
class Slot:
    """A place, as it is written where it is used."""

    place: str
    form: str
    # Whether another object may be put there.
    replaceable: bool = True

    def make(self, random: Random) -> str:
        """What it holds at first."""
        return written(random.choice(FORMS[self.form].make), self.place, random)

    def read(self, random: Random) -> str:
        """A number, or a tensor that can be added, from it."""
        return written(random.choice(FORMS[self.form].reads), self.place, random)

    def change(self, random: Random) -> str | None:
        """A statement that changes it, if any can."""
        form = FORMS[self.form]
        choices = form.changes + (form.replacements if self.replaceable else ())
        return written(random.choice(choices), self.place, random) if choices else None

    def seen_from(self, owner: str) -> Slot:
        """The same place of `self` as another writes it."""
        return dataclasses.replace(self, place=self.place.replace("self", owner, 1))


def written(text: str, place: str, random: Random) -> str:
    """A text with its place and its numbers."""
    while "{n}" in text:
        text = text.replace("{n}", random.choice(NUMBERS), 1)
    return text.format(e=place)
