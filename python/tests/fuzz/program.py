"""The text of a model while it is written: its classes, the statements of a forward, and what is known about values."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from random import Random

from .slots import FORMS, NOT_BY_DEFAULT, NOT_IN_MODELS, NUMBERS, Slot


@dataclasses.dataclass
class Value:
    """A tensor of the full shape that a forward has in a variable."""

    # Its operator needs no output of its own for backward.
    fresh: bool = False
    # Somebody needs it for backward, so it must not change.
    saved: bool = False
    used: bool = False


@dataclasses.dataclass
class Kind:
    """A class of modules."""

    name: str
    depth: int = 1
    size: int = 1
    init: list[str] = dataclasses.field(default_factory=list)
    before: list[str] = dataclasses.field(default_factory=list)
    forward: list[str] = dataclasses.field(default_factory=list)
    # What forward takes besides its tensor: places, and how they stand in the signature.
    extras: list[Slot] = dataclasses.field(default_factory=list)
    signature: list[str] = dataclasses.field(default_factory=list)
    optional: set[str] = dataclasses.field(default_factory=set)
    flag: bool = False
    # Attributes, its own and its children's, that others may change.
    knobs: list[Slot] = dataclasses.field(default_factory=list)
    # Attributes of it that hold a tensor of its last forward.
    keeps: list[str] = dataclasses.field(default_factory=list)
    # Attributes of it that take a tensor of somebody's forward.
    memories: list[str] = dataclasses.field(default_factory=list)
    linears: list[str] = dataclasses.field(default_factory=list)
    returns: str = "tensor"
    changes_input: bool = False
    saves_input: bool = False
    fresh_output: bool = False

    def text(self) -> str:
        """The class."""
        lines = [f"class {self.name}(nn.Module):", *(f"    {line}" for line in self.before)]
        lines += ["    def __init__(self):", "        super().__init__()", *(f"        {line}" for line in self.init)]
        lines += ["", f"    def forward({', '.join(['self', 'x', *self.signature])}):"]
        return "\n".join([*lines, *(f"        {line}" for line in self.forward), ""])


class Program:
    """A model's text, its random source, and the features that it has."""

    def __init__(self, random: Random, without: Collection[str] = ()) -> None:
        self.random = random
        self.without = frozenset(without)
        self.features: Counter[str] = Counter()
        self.top: list[str] = []
        self.globals: list[Slot] = []
        # Names of functions: one reads a number that only closures see, the other changes it.
        self.closures: list[tuple[str, str]] = []
        self.kinds: list[Kind] = []
        self._count = 0

    def has(self, *features: str) -> bool:
        """Whether these may be used; if so, they count as used."""
        if not self.without.isdisjoint(features):
            return False
        self.features.update(features)
        return True

    def may(self, feature: str, chance: float) -> bool:
        """The same, with a chance."""
        return feature not in self.without and self.random.random() < chance and self.has(feature)

    def number(self) -> str:
        """A number."""
        return self.random.choice(NUMBERS)

    def fresh_name(self, stem: str) -> str:
        """A name that is not used yet."""
        self._count += 1
        return f"{stem}{self._count}"

    def form(self, *, in_model: bool = False, default: bool = False) -> str | None:
        """What a new place holds."""
        left_out = set(self.without)
        left_out |= set(NOT_IN_MODELS) if in_model else set()
        left_out |= set(NOT_BY_DEFAULT) if default else set()
        choices = [form for form in FORMS if form not in left_out]
        if not choices:
            return None
        form = self.random.choice(choices)
        self.features[form] += 1
        return form


class Body:
    """The statements of one forward."""

    def __init__(self, program: Program, kind: Kind) -> None:
        self.program = program
        self.random = program.random
        self.kind = kind
        self.lines = kind.forward
        self.values: dict[str, Value] = {"x": Value(fresh=True)}
        self.children: list[tuple[str, Kind]] = []
        self.slots: list[Slot] = []
        self._indent = 0
        self._used_globals: set[str] = set()

    def emit(self, line: str) -> None:
        """Adds a statement."""
        self.lines.append("    " * self._indent + line)

    @contextmanager
    def under(self, line: str) -> Iterator[None]:
        """Statements inside another. Names that are bound there are forgotten behind it."""
        self.emit(line)
        self._indent += 1
        known = set(self.values)
        yield
        self._indent -= 1
        for name in set(self.values) - known:
            del self.values[name]

    def tensor(self, *, saved: bool = True) -> str:
        """A variable that is used now; `saved` says that backward will need it."""
        name = self.random.choice(list(self.values))
        if self.random.random() < 0.6:
            name = list(self.values)[-1]
        return self.use(name, saved=saved)

    def use(self, name: str, *, saved: bool = True) -> str:
        """Marks a variable as used."""
        value = self.values[name]
        value.saved |= saved
        value.used = True
        if name == "x" and saved:
            self.kind.saves_input = True
        return name

    def own(self) -> str:
        """A variable that may be changed in place."""
        names = [name for name, value in self.values.items() if name != "x" and value.fresh and not value.saved]
        if names and self.random.random() < 0.7:
            return self.random.choice(names)
        return self.let(f"{self.tensor(saved=False)} * {self.program.number()}", fresh=True, new=True)

    def let(self, expression: str, *, fresh: bool = False, new: bool = False) -> str:
        """Binds a variable, an old one or a new one."""
        reusable = [name for name, value in self.values.items() if name != "x" and value.used]
        if reusable and not new and self.random.random() < 0.4:
            name = self.random.choice(reusable)
        else:
            name = next(name for name in map("h{}".format, range(99)) if name not in self.values)
        self.emit(f"{name} = {expression}")
        self.bind(name, fresh=fresh)
        return name

    def bind(self, name: str, *, fresh: bool = False) -> None:
        """A variable has a new value."""
        self.values.pop(name, None)
        self.values[name] = Value(fresh=fresh)

    def result(self) -> str:
        """A variable into which all goes that nothing has used yet."""
        unused = [name for name, value in self.values.items() if not value.used]
        last = self.use(unused.pop() if unused else list(self.values)[-1])
        if unused:
            last = self.let(" + ".join([last, *unused]), fresh=True, new=True)
        return last

    def layer(self, made: str, stem: str = "layer") -> str:
        """A layer of PyTorch's as a child."""
        name = self.program.fresh_name(stem)
        self.kind.init.append(f"self.{name} = {made}")
        self.kind.size += 1
        return f"self.{name}"

    def declare_global(self, name: str) -> None:
        """Lets forward bind a global."""
        if name not in self._used_globals:
            self._used_globals.add(name)
            self.kind.forward.insert(0, f"global {name}")

    def add_read(self, slot: Slot) -> None:
        """A statement whose result depends on a place."""
        tensor, read = self.tensor(saved=False), slot.read(self.random)
        if FORMS[slot.form].is_tensor:
            self.let(f"{tensor} + {read}", fresh=True)
        else:
            operator = self.random.choice(("* ({})", "+ ({})", "+ torch.full((W,), float({}))"))
            self.let(f"{tensor} {operator.format(read)}", fresh=True)

    def returned(self, tensor: str) -> str:
        """What forward returns: a tensor, and something beside it."""
        side = self.random.choice((tensor, f"{tensor}.mean()", "None", self.program.number(), "x"))
        return {
            "tensor": tensor,
            "tuple": f"{tensor}, {side}",
            "dict": f"{{'out': {tensor}, 'side': {side}}}",
            "dataclass_output": f"Output({tensor}, {side})",
            "object_output": f"types.SimpleNamespace(out={tensor}, side={side})",
        }[self.kind.returns]


Statement = Callable[[Body], "bool | None"]


@dataclasses.dataclass(frozen=True)
class Feature:
    """A kind of statement."""

    name: str
    weight: float
    statement: Statement


FEATURES: list[Feature] = []


def feature(name: str, weight: float = 1.0) -> Callable[[Statement], Statement]:
    """Registers a function that writes statements. It returns False where it has nothing to write."""

    def register(statement: Statement) -> Statement:
        FEATURES.append(Feature(name, weight, statement))
        return statement

    return register


def add_statement(body: Body, *names: str) -> None:
    """Writes one of the kinds of statements, or of those that are named."""
    choices = [feature for feature in FEATURES if feature.name not in body.program.without]
    choices = [feature for feature in choices if feature.name in names] or choices
    for _ in range(20):
        chosen = body.random.choices(choices, [feature.weight for feature in choices])[0]
        if chosen.statement(body) is not False:
            body.program.features[chosen.name] += 1
            return
