"""Statements that keep nothing: layers, arithmetic, writes in place, modes."""

from __future__ import annotations

from .program import Body, feature

ACTIVATIONS = ("torch.tanh({})", "F.gelu({})", "torch.sigmoid({})", "F.relu({})", "F.silu({})", "torch.sin({})")
VIEWS = ("[:, 0]", "[..., :2]", "[:, 1:]", "[0]", ".transpose(1, 2)[:, :2]", ".view(-1)", ".unbind(1)[0]")
CHANGES = (".mul_({})", ".add_({})", ".clamp_(min={})", ".fill_({})")


@feature("linear", 3)
def _(body: Body) -> None:
    kind = body.random.choice(("nn.Linear(W, W)", "nn.Linear(W, W, bias=False)"))
    layer = body.layer(kind, "linear")
    body.kind.linears.append(layer.removeprefix("self."))
    body.let(f"{layer}({body.tensor()})", fresh=True)


@feature("conv")
def _(body: Body) -> None:
    layer = body.layer("nn.Conv1d(W, W, 3, padding=1)", "conv")
    body.let(f"{layer}({body.tensor()}.transpose(1, 2)).transpose(1, 2)")


@feature("norm", 2)
def _(body: Body) -> None:
    if body.random.random() < 0.5:
        body.let(f"{body.layer('nn.LayerNorm(W)', 'norm')}({body.tensor()})", fresh=True)
    else:
        made = body.random.choice(("nn.BatchNorm1d(W)", "nn.GroupNorm(1, W)", "nn.BatchNorm1d(W, momentum=None)"))
        body.let(f"{body.layer(made, 'norm')}({body.tensor()}.transpose(1, 2)).transpose(1, 2)")


@feature("activation", 3)
def _(body: Body) -> None:
    body.let(body.random.choice(ACTIVATIONS).format(body.tensor()))


@feature("dropout", 2)
def _(body: Body) -> None:
    tensor = body.tensor()
    layer = f"{body.layer('nn.Dropout(0.3)', 'dropout')}({tensor})"
    body.let(body.random.choice((layer, f"F.dropout({tensor}, 0.25, self.training)")))


@feature("sequential")
def _(body: Body) -> None:
    made = body.random.choice(
        (
            "nn.Sequential(nn.Linear(W, 2 * W), nn.GELU(), nn.Linear(2 * W, W))",
            "nn.Sequential(nn.Linear(W, W), nn.ReLU(inplace=True), nn.Dropout(0.2, inplace=True), nn.Linear(W, W))",
            "nn.Sequential(nn.LayerNorm(W), nn.Linear(W, W), nn.Tanh())",
        )
    )
    body.let(f"{body.layer(made, 'seq')}({body.tensor()})")


@feature("attention")
def _(body: Body) -> None:
    q, k, v = body.tensor(), body.tensor(), body.tensor()
    body.let(
        body.random.choice(
            (
                f"torch.softmax({q} @ {k}.transpose(1, 2) / 3, -1) @ {v}",
                f"F.scaled_dot_product_attention({q}, {k}, {v})",
                f"torch.bmm(torch.bmm({q}, {k}.transpose(1, 2)).softmax(-1), {v})",
            )
        )
    )


@feature("elementwise", 3)
def _(body: Body) -> None:
    a, b, number = body.tensor(), body.tensor(), body.program.number()
    body.let(
        body.random.choice(
            (
                f"{a} * {b}",
                f"{a} + {b}",
                f"{a} - {number} * {b}",
                f"torch.maximum({a}, {b})",
                f"torch.where({a} > 0, {a}, {b})",
                f"torch.cat([{a}, {b}], -1)[..., :W]",
                f"{a} / (1 + {b}.abs())",
                f"{a}.softmax(-1)",
            )
        )
    )


@feature("inplace_own", 3)
def _(body: Body) -> None:
    tensor, other = body.own(), body.tensor(saved=False)
    choices = [f"{tensor}{change.format(body.program.number())}" for change in CHANGES]
    if other != tensor:
        choices.append(f"{tensor} += {other}")
    choices.append(f"F.relu({tensor}, inplace=True)")
    body.emit(body.random.choice(choices))
    body.values[tensor].saved = body.lines[-1].strip().startswith(("F.relu", f"{tensor}.clamp_"))


@feature("inplace_view", 2)
def _(body: Body) -> None:
    tensor, number = body.own(), body.program.number()
    view = tensor + body.random.choice(VIEWS)
    if body.random.random() < 0.3:
        name = body.program.fresh_name("view")
        body.emit(f"{name} = {view}")
        body.emit(name + body.random.choice(CHANGES[:2]).format(number))
    else:
        body.emit(body.random.choice((f"{tensor}[:, 0] = {number}", f"{view}.mul_({number})", f"{tensor}[..., 1:] += {number}")))


@feature("inplace_input")
def _(body: Body) -> bool | None:
    """On the argument of forward: the caller's tensor changes."""
    if "x" not in body.values or body.values["x"].saved or not body.values["x"].fresh or body.kind.name == "Root":
        return False
    body.kind.changes_input = True
    body.emit("x" + body.random.choice(CHANGES[:2]).format(body.program.number()))
    return None


@feature("view")
def _(body: Body) -> None:
    tensor = body.tensor()
    body.let(body.random.choice((f"{tensor}.view_as({tensor})", f"{tensor}.flatten(0, 1).view(B, T, W)", f"{tensor}[:, :, :]")))


@feature("detach")
def _(body: Body) -> None:
    tensor = body.tensor()
    body.let(f"{tensor} + {body.tensor()}.detach()", fresh=True)


@feature("no_grad")
def _(body: Body) -> None:
    a, b = body.own(), body.tensor(saved=False)
    with body.under("with torch.no_grad():"):
        body.emit(f"{a} = {a} + {body.program.number()} * {b}.tanh()")
    body.bind(a, fresh=True)


@feature("autocast")
def _(body: Body) -> None:
    layer, tensor = body.layer("nn.Linear(W, W)", "linear"), body.tensor()
    name = body.let("x", new=True)
    with body.under("with torch.autocast('cpu', torch.bfloat16):"):
        body.emit(f"{name} = {layer}({tensor})")
        if body.random.random() < 0.5:
            body.emit(f"{name} = {layer}({name}).tanh()")
    body.emit(f"{name} = {name}.float()")
    body.use("x")
    body.bind(name, fresh=True)


@feature("default_dtype", 0.7)
def _(body: Body) -> None:
    """A constant that a forward makes in the default type."""
    body.let(f"({body.tensor(saved=False)} + torch.full((W,), {body.program.number()} / 3)).float()", fresh=True)


@feature("tensor_hook", 0.7)
def _(body: Body) -> None:
    tensor = body.use(list(body.values)[-1])
    hook = body.random.choice(("lambda g: g * 0.5", "lambda g: g.clamp(-1, 1)", "lambda g: HOOKED.append('gradient')"))
    body.emit(f"if {tensor}.requires_grad: {tensor}.register_hook({hook})")


@feature("module_hook", 0.7)
def _(body: Body) -> None:
    layer = body.layer("nn.Linear(W, W)", "linear")
    hook = body.random.choice(
        (
            "register_forward_hook(scale_output)",
            "register_forward_hook(count_calls)",
            "register_forward_pre_hook(scale_input)",
            "register_full_backward_hook(log_gradient)",
        )
    )
    body.kind.init.append(f"{layer}.{hook}")
    body.let(f"{layer}({body.tensor()})")


@feature("custom_function", 0.5)
def _(body: Body) -> None:
    body.let(f"Doubled.apply({body.tensor()})")
