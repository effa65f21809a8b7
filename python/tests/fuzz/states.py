"""Statements that read or change what lives longer than a forward."""

from __future__ import annotations

from .program import Body, feature
from .slots import Slot


def reachable(body: Body) -> list[Slot]:
    """Places that a forward can read and change."""
    return [*body.slots, *body.kind.knobs, *body.program.globals]


def scope_of(body: Body, slot: Slot) -> str:
    """Whose place it is, as a feature."""
    if slot in body.program.globals:
        return "globals"
    if slot.place.startswith("type(self)"):
        return "class_attributes"
    if not slot.place.startswith("self."):
        return "arguments"
    return "attributes" if slot.place.count(".") == 1 else "attributes_by_parent"


def change(body: Body, slot: Slot) -> bool:
    """Writes a statement that changes a place, if it may."""
    text = slot.change(body.random)
    if text is None or not body.program.has(scope_of(body, slot), slot.form):
        return False
    if slot in body.program.globals and slot.place.isidentifier():
        body.declare_global(slot.place)
    body.emit(text)
    return True


@feature("change", 3)
def _(body: Body) -> bool:
    slots = reachable(body)
    return bool(slots) and change(body, body.random.choice(slots))


@feature("read", 3)
def _(body: Body) -> bool | None:
    slots = reachable(body)
    if not slots:
        return False
    body.add_read(body.random.choice(slots))
    return None


@feature("attributes", 2)
def _(body: Body) -> bool | None:
    """A new attribute, read at once."""
    form = body.program.form(in_model=True)
    if form is None:
        return False
    slot = Slot(f"self.{body.program.fresh_name(form + '_')}", form)
    body.kind.init.append(f"{slot.place} = {slot.make(body.random)}")
    body.kind.knobs.append(slot)
    body.add_read(slot)
    return None


@feature("class_attributes", 0.5)
def _(body: Body) -> bool | None:
    form = body.program.form(in_model=True)
    if form is None:
        return False
    name = body.program.fresh_name(form + "_")
    slot = Slot(f"type(self).{name}", form)
    body.kind.before.append(f"{name} = {slot.make(body.random)}")
    body.slots.append(slot)
    body.add_read(slot)
    if body.random.random() < 0.5:
        change(body, slot)
    return None


@feature("globals", 1.5)
def _(body: Body) -> bool | None:
    program = body.program
    if not program.globals or body.random.random() < 0.3:
        form = program.form()
        if form is None:
            return False
        slot = Slot(program.fresh_name(form.upper() + "_"), form)
        program.top.append(f"{slot.place} = {slot.make(body.random)}")
        program.globals.append(slot)
    slot = body.random.choice(program.globals)
    body.add_read(slot)
    if body.random.random() < 0.5:
        change(body, slot)
    return None


CLOSURE = """\
def make_{name}():
    value = {number}
    def read():
        return value
    def write(new):
        nonlocal value
        value = new
    return read, write

{name}, set_{name} = make_{name}()
"""


@feature("closures", 1.5)
def _(body: Body) -> None:
    program = body.program
    if not program.closures or body.random.random() < 0.3:
        name = program.fresh_name("closed")
        program.top.append(CLOSURE.format(name=name, number=program.number()))
        program.closures.append((name, f"set_{name}"))
    read, write = body.random.choice(program.closures)
    choice = body.random.random()
    if choice < 0.6:
        body.let(f"{body.tensor(saved=False)} * {read}()", fresh=True)
    if choice > 0.3:
        body.emit(f"{write}({body.random.choice((program.number(), f'{read}() + 0.5'))})")


TABLES = (
    "torch.arange(W).float().cos()",
    "torch.linspace(0.0, 1.0, W).tanh() * 0.5",
    "torch.zeros(W).add_(0.5).mul_(2)",
    "(torch.ones(T, W).tril() * 0.25).sum(0)",
    "torch.full((W,), 0.5) + 1",
    # Drawn: it must not be drawn again.
    "torch.rand(W)",
)


@feature("tables", 2)
def _(body: Body) -> None:
    """A table that is made when it is first needed."""
    program, made = body.program, body.random.choice(TABLES)
    name, place = program.fresh_name("table"), body.random.randrange(5)
    if place < 2:
        begins = f"self.{name} = None" if place else f"self.register_buffer('{name}', None, persistent=False)"
        body.kind.init.append(begins)
        read = f"self.{name}"
        with body.under(f"if {read} is None:"):
            body.emit(f"{read} = {made}")
    elif place == 2:
        body.kind.init.append(f"self.{name} = {{}}")
        read = f"self.{name}[W]"
        with body.under(f"if W not in self.{name}:"):
            body.emit(f"{read} = {made}")
    elif place == 3:
        limit = body.random.choice(("None", "2"))
        program.top.append(f"@functools.lru_cache({limit})\ndef {name}(width):\n    return {made}\n")
        read = f"{name}(W)"
    else:
        program.top.append(f"{name.upper()} = {{}}")
        read = f"{name.upper()}[W]"
        with body.under(f"if W not in {name.upper()}:"):
            body.emit(f"{read} = {made}")
    body.let(f"{body.tensor(saved=False)} * {read}", fresh=True)


@feature("counter", 1.5)
def _(body: Body) -> None:
    body.kind.init.append("self.count = 0") if "self.count = 0" not in body.kind.init else None
    body.emit("self.count += 1")
    tensor = body.tensor()
    if body.random.random() < 0.7:
        body.let(f"{tensor} * (1 + 0.125 * self.count)", fresh=True)
    else:
        with body.under("if self.count % 2:"):
            body.emit(f"{tensor} = {tensor}.tanh()")
        body.bind(tensor)


@feature("python_random", 1.5)
def _(body: Body) -> None:
    tensor = body.tensor()
    if body.random.random() < 0.2:
        with body.under("if random.random() < 0.5:"):
            body.emit(f"{tensor} = {tensor}.tanh()")
        body.bind(tensor)
    else:
        drawn = body.random.choice(("random.random()", "random.choice([0.5, 1.5, 2.0])", "random.gauss(0, 1)"))
        body.let(f"{tensor} * {drawn}", fresh=True)


@feature("own_random")
def _(body: Body) -> None:
    made, drawn = body.random.choice(
        (("random.Random(3)", "{}.random()"), ("numpy.random.default_rng(3)", "float({}.normal())"))
    )
    place = body.layer(made, "rng")
    body.kind.size -= 1
    body.let(f"{body.tensor()} * {drawn.format(place)}", fresh=True)


@feature("numpy_random", 1.5)
def _(body: Body) -> None:
    drawn = body.random.choice(
        ("float(numpy.random.rand())", "torch.from_numpy(numpy.random.rand(W).astype('float32'))", "int(numpy.random.randint(1, 4))")
    )
    body.let(f"{body.tensor()} * {drawn}", fresh=True)


@feature("torch_random", 1.5)
def _(body: Body) -> None:
    tensor = body.tensor()
    drawn = body.random.choice(("torch.rand(W)", f"torch.randn_like({tensor})", "torch.rand(()) ", f"torch.bernoulli({tensor}.sigmoid())"))
    body.let(f"{tensor} + 0.1 * {drawn}", fresh=True)


@feature("torch_generator")
def _(body: Body) -> None:
    place = body.layer("torch.Generator().manual_seed(5)", "generator")
    body.kind.size -= 1
    body.let(f"{body.tensor()} * torch.rand(W, generator={place})", fresh=True)


@feature("buffer_inplace", 1.5)
def _(body: Body) -> None:
    name, tensor = body.program.fresh_name("average"), body.tensor()
    body.kind.init.append(f"self.register_buffer('{name}', torch.zeros(W))")
    update = body.random.choice(
        (f"self.{name}.mul_(0.9).add_({tensor}.detach().mean((0, 1)), alpha=0.1)", f"self.{name} += 0.5",
         f"self.{name}.lerp_({tensor}.detach().amax((0, 1)), 0.5)", f"self.{name}[1:].add_(0.25)")
    )  # fmt: skip
    lines = [update, f"{tensor} = {tensor} - self.{name}"]
    body.random.shuffle(lines)
    with body.under("if self.training:"):
        body.emit(lines[0])
        body.emit(lines[1])
    body.bind(tensor)


@feature("buffer_replaced", 1.5)
def _(body: Body) -> None:
    name, tensor = body.program.fresh_name("average"), body.tensor()
    body.kind.init.append(f"self.register_buffer('{name}', torch.zeros(W))")
    lines = [f"self.{name} = self.{name} * 0.5 + {tensor}.detach().mean((0, 1))", f"{tensor} = {tensor} * (1 + self.{name})"]
    body.random.shuffle(lines)
    body.emit(lines[0])
    body.emit(lines[1])
    body.bind(tensor)


@feature("kept", 1.5)
def _(body: Body) -> None:
    name, tensor = body.program.fresh_name("kept"), body.tensor()
    body.kind.init.append(f"self.{name} = None")
    kept = body.random.choice((tensor, f"{tensor}.square().mean()", f"[{tensor}, {tensor}.mean()]"))
    body.emit(f"self.{name} = {kept}")
    body.kind.keeps.append(f"{name}[1]" if kept.startswith("[") else name)


@feature("retain_grad", 0.4)
def _(body: Body) -> None:
    name, tensor = body.program.fresh_name("retained"), body.tensor()
    body.kind.init.append(f"self.{name} = None")
    body.emit(f"if {tensor}.requires_grad: {tensor}.retain_grad()")
    body.emit(f"self.{name} = {tensor}")


@feature("memory")
def _(body: Body) -> None:
    """A tensor that somebody else puts into an attribute."""
    name, tensor = body.program.fresh_name("memory"), body.tensor(saved=False)
    body.kind.init.append(f"self.{name} = None")
    body.kind.memories.append(name)
    with body.under(f"if self.{name} is not None:"):
        body.emit(f"{tensor} = {tensor} + self.{name}")
    body.bind(tensor, fresh=True)


@feature("memo", 1.2)
def _(body: Body) -> None:
    """Computed once, and used by the second run too."""
    name, tensor = body.program.fresh_name("memo"), body.tensor()
    made = body.random.choice(("torch.arange(W).float()", "torch.linspace(0, 1, W).cos()", f"{tensor}.detach().mean((0, 1))"))
    if body.random.random() < 0.5:
        body.kind.init.append(f"self.{name} = None")
        body.emit(f"if self.{name} is None: self.{name} = {made}")
        body.let(f"{tensor} * self.{name}")
    else:
        body.kind.init.append(f"self.{name} = {{}}")
        body.emit(f"if W not in self.{name}: self.{name}[W] = {made}")
        body.let(f"{tensor} + self.{name}[W]", fresh=True)


@feature("lru_cache", 0.7)
def _(body: Body) -> None:
    name = body.program.fresh_name("cached")
    body.program.top.append(f"@functools.lru_cache\ndef {name}(width):\n    return torch.arange(width) / {body.program.number()}\n")
    body.let(f"{body.tensor()} * {name}(W)")


@feature("early_return", 1.2)
def _(body: Body) -> bool | None:
    conditions = [f"{slot.read(body.random)} > 0.75" for slot in reachable(body) if slot.form in ("number", "list", "dict", "namespace")]
    conditions += ["flag"] * body.kind.flag + ["self.training is False", "x.dim() == 2"]
    condition, tensor = body.random.choice(conditions), body.tensor()
    with body.under(f"if {condition}:"):
        body.emit(f"return {body.returned(tensor)}")
    return None


@feature("switch", 1.2)
def _(body: Body) -> bool | None:
    """What runs depends on a place."""
    slots = [slot for slot in reachable(body) if slot.form in ("number", "list", "dict", "namespace", "dataclass", "object")]
    if not slots:
        return False
    slot, tensor = body.random.choice(slots), body.tensor()
    other = body.random.choice(("tanh()", "sin()", "relu()"))
    with body.under(f"if {slot.read(body.random)} > 0.6:"):
        body.emit(f"{tensor} = {tensor}.{other}")
    body.bind(tensor)
    return None
