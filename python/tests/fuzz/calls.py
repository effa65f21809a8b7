"""Statements that call a child, and what is done to it and to its arguments before and after."""

from __future__ import annotations

from .program import Body, Kind, Value, feature
from .slots import Slot
from .states import change

AROUND = {
    "autocast_around": "with torch.autocast('cpu', torch.bfloat16):",
    "no_grad_around": "with torch.no_grad():",
    "dtype_around": "with default_dtype(torch.float64):",
}


def argument(body: Body, extra: Slot) -> Slot:
    """A place to hand over: of forward's own arguments, an attribute, a global, or a new one."""
    known = [slot for slot in (*body.slots, *body.kind.knobs, *body.program.globals) if slot.form == extra.form]
    if known and body.random.random() < 0.5:
        return body.random.choice(known)
    made = Slot(body.program.fresh_name("box"), extra.form, replaceable=False)
    body.emit(f"{made.place} = {made.make(body.random)}")
    body.slots.append(made)
    return made


def arguments(body: Body, kind: Kind) -> tuple[str, list[Slot]]:
    """The arguments of a call but the tensor, and the places among them."""
    texts, handed = [], []
    keywords = False
    for extra in kind.extras:
        if extra.place in kind.optional and body.random.random() < 0.3:
            keywords = True
            continue
        slot = argument(body, extra)
        handed.append(slot)
        keywords |= body.program.may("keywords", 0.4)
        texts.append(f"{extra.place}={slot.place}" if keywords else slot.place)
    if kind.flag and body.random.random() < 0.5:
        texts.append(f"flag={body.random.choice(('True', 'False', 'None'))}")
    return "".join(f", {text}" for text in texts), handed


def call(body: Body, child: str, kind: Kind, tensor: str | None = None) -> str:
    """Calls a child and binds what it returns."""
    if tensor is None:
        held = kind.saves_input or "inplace_after_call" in body.program.without
        tensor = body.own() if kind.changes_input else body.tensor(saved=held)
    rest, handed = arguments(body, kind)
    text = f"{child}({tensor}{rest})"
    if not kind.changes_input and body.program.may("checkpoint_inside", 0.06):
        text = f"checkpoint({child}, {tensor}{rest}, use_reentrant=False)"
    name = body.let("None", new=True)
    body.lines.pop()
    around = body.random.choice(list(AROUND)) if body.random.random() < 0.15 else None
    if around is not None and body.program.has(around):
        with body.under(AROUND[around]):
            unpack(body, name, text, kind.returns)
        body.emit(f"{name} = {name}.float()")
    else:
        unpack(body, name, text, kind.returns)
    body.values[name] = Value(fresh=kind.fresh_output)
    for slot in handed:
        if body.program.may("changed_after_call", 0.5):
            change(body, slot)
    return name


def unpack(body: Body, name: str, text: str, returns: str) -> None:
    """Binds a name to the tensor among what a call returns."""
    if returns == "tensor":
        body.emit(f"{name} = {text}")
    elif returns == "tuple":
        body.emit(f"{name}, side = {text}")
    else:
        out = body.program.fresh_name("out")
        body.emit(f"{out} = {text}")
        field = "['{}']" if returns == "dict" else ".{}"
        body.emit(f"{name} = {out}{field.format('out')}")
        if body.random.random() < 0.3:
            body.emit(f"{out}{field.format('side')} = None")
    if returns != "tensor":
        body.program.features[returns] += 1


@feature("call", 5)
def _(body: Body) -> bool | None:
    if not body.children:
        return False
    call(body, *body.random.choice(body.children))
    return None


@feature("residual", 2)
def _(body: Body) -> bool | None:
    if not body.children:
        return False
    tensor = body.tensor()
    out = call(body, *body.random.choice(body.children))
    if tensor in body.values and tensor != out:
        body.let(f"{body.use(tensor)} + {out}", fresh=True)
    return None


@feature("shared", 1.5)
def _(body: Body) -> bool | None:
    """One child several times, with a change in between."""
    plain = [(child, kind) for child, kind in body.children if not kind.changes_input]
    if not plain:
        return False
    child, kind = body.random.choice(plain)
    out = call(body, child, kind)
    if kind.knobs and body.random.random() < 0.7:
        change(body, body.random.choice(kind.knobs).seen_from(child))
    call(body, child, kind, body.use(out))
    return None


@feature("loop", 0.8)
def _(body: Body) -> bool | None:
    plain = [(c, k) for c, k in body.children if k.returns == "tensor" and not k.extras and not k.changes_input]
    if not plain:
        return False
    child, kind = body.random.choice(plain)
    name = body.let(f"{body.tensor()} * 1.0", new=True)
    with body.under(f"for i in range({body.random.choice((2, 3))}):"):
        body.emit(f"{name} = {child}({name})")
        if kind.knobs:
            knob = body.random.choice(kind.knobs).seen_from(child)
            if body.random.random() < 0.5:
                change(body, knob)
    body.bind(name, fresh=kind.fresh_output)
    return None


@feature("random_order", 0.6)
def _(body: Body) -> bool | None:
    plain = [c for c, k in body.children if k.returns == "tensor" and not k.extras and not k.changes_input]
    if len(plain) < 2:
        return False
    name = body.let(f"{body.tensor()} * 1.0", new=True)
    with body.under(f"for child in random.sample([{', '.join(plain)}], {min(3, len(plain))}):"):
        body.emit(f"{name} = child({name})")
    body.bind(name)
    return None


@feature("inplace_output", 1.5)
def _(body: Body) -> bool | None:
    """What a child returned is changed after it returned."""
    children = [(child, kind) for child, kind in body.children if kind.fresh_output]
    if not children:
        return False
    out = call(body, *body.random.choice(children))
    body.emit(f"{out}{body.random.choice(('.mul_({})', '.add_({})', '[:, 0] = {}')).format(body.program.number())}")
    return None


@feature("inplace_after_call", 1.5)
def _(body: Body) -> bool | None:
    """What a child was given is changed after it returned."""
    children = [(child, kind) for child, kind in body.children if not kind.saves_input]
    if not children:
        return False
    tensor = body.own()
    call(body, *body.random.choice(children), tensor)
    if tensor in body.values:
        body.emit(f"{tensor}{body.random.choice(('.mul_({})', '.add_({})', '[:, 0] = {}')).format(body.program.number())}")
    return None


@feature("read_kept", 1.5)
def _(body: Body) -> bool | None:
    """What a child keeps of its forward is used by its parent."""
    children = [(child, kind) for child, kind in body.children if kind.keeps]
    if not children:
        return False
    child, kind = body.random.choice(children)
    call(body, child, kind)
    keep = f"{child}.{body.random.choice(kind.keeps)}"
    body.emit(f"if {keep.partition('[')[0]} is not None: {(name := body.own())} = {name} + {keep}")
    body.bind(name, fresh=True)
    return None


@feature("set_memory", 1.5)
def _(body: Body) -> bool | None:
    children = [(child, kind) for child, kind in body.children if kind.memories]
    if not children:
        return False
    child, kind = body.random.choice(children)
    memory = f"{child}.{body.random.choice(kind.memories)}"
    body.emit(f"{memory} = {body.random.choice((body.tensor(), body.tensor() + '.detach()'))}")
    call(body, child, kind)
    body.emit(f"{memory} = {body.random.choice((body.tensor(), 'None', memory))}")
    return None


@feature("train_eval")
def _(body: Body) -> bool | None:
    if not body.children:
        return False
    child, kind = body.random.choice(body.children)
    first, second = body.random.choice((("eval", "train"), ("train", "eval")))
    body.emit(f"{child}.{first}()")
    call(body, child, kind)
    body.emit(f"{child}.{second}()")
    return None


@feature("requires_grad")
def _(body: Body) -> bool | None:
    children = [(child, kind) for child, kind in body.children if kind.linears]
    if not children:
        return False
    child, kind = body.random.choice(children)
    weight = f"{child}.{body.random.choice(kind.linears)}.weight"
    body.emit(f"{weight}.requires_grad_(False)")
    call(body, child, kind)
    body.emit(f"{weight}.requires_grad_(True)")
    return None


@feature("tied", 0.6)
def _(body: Body) -> bool | None:
    children = [(child, kind) for child, kind in body.children if kind.linears]
    if len(children) < 2:
        return False
    (a, first), (b, second) = body.random.sample(children, 2)
    body.kind.init.append(f"{a}.{first.linears[0]}.weight = {b}.{second.linears[0]}.weight")
    return None


@feature("module_argument", 0.5)
def _(body: Body) -> bool | None:
    """A child runs inside another, which is given it."""
    plain = [c for c, k in body.children if k.returns == "tensor" and not k.extras and not k.changes_input]
    if not plain:
        return False
    runner = body.layer("Runner()", "runner")
    body.let(f"{runner}({body.random.choice(plain)}, {body.tensor()})")
    return None
