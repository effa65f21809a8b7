"""A small random model from a seed, as Python text.

The text defines `Root`, the model; `inputs()`, the arguments of a step; and `after(model, args, kwargs)`, what
the training loop does between forward and backward.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection
from random import Random
from typing import Any

from . import calls, layers  # noqa: F401 (they register statements)
from .helpers import HEAD, HELPERS
from .program import FEATURES, Body, Kind, Program, add_statement
from .slots import FORMS, Slot
from .states import change

RETURNS = ("tuple", "dict", "dataclass_output", "object_output")
MOST_MODULES = 12
# What each forward begins with, so that there is something to recompute.
WITH_GRADIENTS = ("linear", "activation", "norm", "sequential", "dropout")

@dataclasses.dataclass(frozen=True)
class Case:
    """A model's text, and the features in it."""

    source: str
    features: Counter[str]


def names_of_features() -> list[str]:
    """All that can be switched off."""
    other = ["arguments", "attributes_by_parent", "defaults", "keywords", "changed_after_call", "checkpoint_inside"]
    other += [*calls.AROUND, *RETURNS, "changed_by_loop", "input_gradient", "shared_instance", "flags"]
    return sorted({feature.name for feature in FEATURES} | set(FORMS) | set(other))


def generate(seed: int | str, without: Collection[str] = ()) -> Case:
    """The model of a seed."""
    program = Program(Random(seed), without)
    random = program.random
    count = random.randint(2, 5)
    for level in range(count):
        kind = Kind("Root" if level == count - 1 else f"M{level}")
        write(program, kind, is_root=level == count - 1)
        program.kinds.append(kind)
    root = program.kinds[-1]
    shape = ", ".join(map(str, (random.choice((2, 3, 4)), random.choice((2, 3, 5)), random.choice((4, 6, 8)))))
    after, inputs = loop(program, root)
    used = [kind for kind in program.kinds if kind is root or any(f"{kind.name}()" in k.text() for k in program.kinds)]
    parts = [HEAD.format(shape=shape), *program.top, *(kind.text() for kind in used), inputs, after]
    text = "\n".join(parts)
    helpers = [helper for name, helper in HELPERS.items() if name in text]
    return Case("\n".join([parts[0], *helpers, *parts[1:]]), program.features)


def write(program: Program, kind: Kind, *, is_root: bool) -> None:
    """Writes the class of one level, over classes of the levels below."""
    random, body = program.random, Body(program, kind)
    add_children(body, is_root=is_root)
    if program.may(returns := random.choice(RETURNS), 0.35):
        kind.returns = returns
    pending = add_extras(body, is_root=is_root)
    if is_root:
        reset(body)
        body.let(f"{body.layer('nn.Linear(W, W)', 'linear')}(x)", fresh=True, new=True)
        body.use("x")
    elif random.random() < 0.5:
        body.let(f"x * {program.number()}", fresh=True, new=True)
    pending += [child for child in body.children if is_root or random.random() < 0.8]
    steps: list[Any] = [(), (), *pending, *[()] * random.choice((0, 1, 2))]
    random.shuffle(steps)
    add_statement(body, *WITH_GRADIENTS)
    for step in steps:
        if isinstance(step, Slot):
            body.add_read(step)
        elif step:
            calls.call(body, *step)
        else:
            add_statement(body)
    last = body.result()
    if random.random() < 0.5:
        last = body.let(f"{last} * {program.number()}", fresh=True, new=True)
        kind.fresh_output = True
    body.emit(f"return {body.returned(last)}")


def add_children(body: Body, *, is_root: bool) -> None:
    program, kind, random = body.program, body.kind, body.random
    if not program.kinds:
        return
    below = program.kinds[-1:] + [random.choice(program.kinds) for _ in range(random.choice((0, 1, 1, 2)))]
    for index, child in enumerate(below):
        if kind.size + child.size > MOST_MODULES:
            continue
        kind.size += child.size
        kind.depth = max(kind.depth, child.depth + 1)
        name = f"self.m{index}"
        if index and body.children and program.may("shared_instance", 0.1):
            name, child = f"self.m{index}", body.children[0][1]
            kind.init.append(f"{name} = {body.children[0][0]}")
        else:
            kind.init.append(f"{name} = {child.name}()")
        body.children.append((name, child))
        kind.knobs += [knob.seen_from(name) for knob in child.knobs if knob.place.count(".") < 3]


def add_extras(body: Body, *, is_root: bool) -> list[Any]:
    """What forward takes besides its tensor. Each place is read somewhere."""
    program, kind, random = body.program, body.kind, body.random
    pending: list[Any] = []
    for index in range(random.choice((0, 0, 1, 1, 2))):
        default = program.may("defaults", 0.3)
        form = program.form(default=default)
        if form is None or not program.has("arguments"):
            continue
        slot = Slot(f"a{index}", form, replaceable=False)
        kind.extras.append(slot)
        body.slots.append(slot)
        pending.append(slot)
        default |= bool(kind.optional)
        if default:
            kind.optional.add(slot.place)
            kind.signature.append(f"{slot.place}={Slot('', form).make(random)}")
        else:
            kind.signature.append(slot.place)
    if not is_root and program.may("flags", 0.3):
        kind.flag = True
        kind.signature.append("flag=None")
    return pending


def reset(body: Body) -> None:
    """Tensors of the step before are let go: their graph is gone."""
    body.emit("for module in self.modules():")
    body.emit("    for name in list(vars(module)):")
    body.emit("        if name.startswith(('kept', 'memory', 'retained')): setattr(module, name, None)")


def loop(program: Program, root: Kind) -> tuple[str, str]:
    """What the training loop hands to the model, and what it does between forward and backward."""
    random = program.random
    arguments, names = ["x"], []
    lines = ["def inputs():", "    x = torch.randn(B, T, W)"]
    if program.may("input_gradient", 0.5):
        lines.append("    x.requires_grad_()")
    for extra in root.extras:
        if extra.place in root.optional and random.random() < 0.5:
            continue
        names.append(extra)
        lines.append(f"    {extra.place} = {Slot(extra.place, extra.form).make(random)}")
    lines.append(f"    return ({', '.join(arguments)},), dict({', '.join(f'{e.place}={e.place}' for e in names)})\n")
    kind = Kind("after")
    body = Body(program, kind)
    body.slots += [Slot(f"kwargs['{extra.place}']", extra.form, replaceable=False) for extra in names]
    knobs = [knob.seen_from("model") for knob in root.knobs]
    if "changed_by_loop" not in program.without:
        for slot in [*body.slots, *random.sample(knobs, min(2, len(knobs))), *program.globals]:
            if random.random() < 0.4 and change(body, slot):
                program.features["changed_by_loop"] += 1
        for read, write in program.closures:
            if random.random() < 0.3:
                body.emit(f"{write}({read}() + 0.25)")
    after = ["def after(model, args, kwargs):", *(f"    {line}" for line in kind.forward), "    return None", ""]
    return "\n".join(after), "\n".join(lines)
