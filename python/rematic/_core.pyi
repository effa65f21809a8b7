from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypeAlias, final

# A name of `rematic devices`, "cuda", "cuda:0", "cpu", or a torch.device.
_Device: TypeAlias = Any
_Path: TypeAlias = str | PathLike[str]
_Size: TypeAlias = int | str
_Layout: TypeAlias = tuple[str, list[int], list[int]]
_Allocator: TypeAlias = Literal["cuda", "cpu"]
_Cost: TypeAlias = Literal["physical", "torch", "measured"]
_Loss: TypeAlias = Literal["plain", "chunked", "auto"]
_Patterns: TypeAlias = str | Sequence[str]

__version__: str
DEFAULT_DEVICE: str

class RematicError(ValueError):
    """Something that Rematic cannot use; says what to do about it."""

class TraceError(RematicError):
    """A model, config or trace that cannot be used."""

class PlanError(RematicError):
    """A plan, or a question to a planner, that cannot be used."""

class Infeasible(PlanError):
    """No plan meets the budget."""

    budget: int
    """The budget, in bytes."""
    least_budget: int
    """The least budget that a plan was found for, in bytes."""

class RematicWarning(UserWarning):
    """Something that is most likely not what was meant."""

@final
class Op:
    """One operator of a step."""

    @property
    def name(self) -> str:
        """Its name with overload (`mm.default`)."""
    @property
    def phase(self) -> Literal["forward", "backward", "optimizer"]: ...
    @property
    def module(self) -> str | None:
        """The full name of the module that it belongs to."""
    @property
    def inputs(self) -> list[tuple[int, _Layout]]:
        """What it reads: storage, and layout as (dtype, shape, strides)."""
    @property
    def outputs(self) -> list[tuple[int, _Layout]]:
        """What it returns."""
    @property
    def view(self) -> bool:
        """Whether it is a view: no kernel runs."""
    @property
    def random(self) -> bool:
        """Whether it draws random numbers."""

@final
class Module:
    """One module of a step."""

    @property
    def path(self) -> str:
        """Its full name."""
    @property
    def class_name(self) -> str: ...
    @property
    def calls(self) -> int:
        """How often its forward runs."""

@final
class Trace:
    """One training step: its modules, memory and operators, and everything that happens, in order."""

    @staticmethod
    def from_bytes(data: bytes | bytearray) -> Trace:
        """Reads and validates the content of an `.rmt` or `.rmt.zst` file."""
    @staticmethod
    def load(path: _Path) -> Trace:
        """Reads and validates a trace file."""
    def fsdp(self, gpus: int, *, replicate: int = 1, rank: int = 0, reshard: bool = True, mixed: bool = False) -> Trace:
        """The step of one rank with the layers and the model sharded by FSDP2 over so many GPUs, with all buffers.

        `replicate`: groups of GPUs with a copy of the model each (HSDP). `rank`: whose step it is, within its group. `reshard`:
        whether a layer's weights go after its forward. `mixed`: shards, their gradients and the optimizer's state are fp32,
        while the step computes in a half type.
        """
    @staticmethod
    def model(
        source: _Path | dict[str, Any],
        *,
        batch: int | None = None,
        seq: int | None = None,
        dtype: Any = None,
        optimizer: Literal[
            "adam", "adamw", "sgd", "sgd-momentum", "adam-fused", "adamw-fused", "sgd-fused", "sgd-momentum-fused",
            "adamw8bit", "lion", "muon", "adafactor", "none"
        ]
        | None = None,
        attention: Literal["auto", "flash", "efficient", "math"] | None = None,
        device: Any = None,
        layers: int | None = None,
        dropout: float | None = None,
        dim: int | None = None,
        heads: int | None = None,
        vocab: int | None = None,
        tp: int | None = None,
        tp_rank: int | None = None,
        precision: Literal["bf16", "mixed", "fp32", "fp16"] | None = None,
        accumulate: int | None = None,
        lora: int | None = None,
        lora_targets: str | Sequence[str] | None = None,
        lora_alpha: float | None = None,
        freeze: str | Sequence[str] | None = None,
        loss: _Loss | None = None,
    ) -> Trace:
        """Traces a built-in model, or the one that a Hugging Face config (a path, or a dict) describes.

        `dtype` is fp32, bf16 or fp16, or torch's own. `device` is where it runs: which kernel attention takes follows the card. `tp` is the number of ranks that share the model (tensor parallelism), and
        `tp_rank` which of them it is. `precision` is "mixed" (fp32 parameters, `torch.autocast` in bfloat16), "fp16" (the same in
        float16) or a type for all; `accumulate` the micro-batches of a step; `lora` the rank of PEFT's adapters beside
        `lora_targets`; `freeze` has patterns for parameters that need no gradient; `loss="chunked"` computes it in parts, as `apply` of a plan does;
        "auto" traces both, for `plan(trace, loss="auto")`.
        """
    def beside(self, chunked: Trace | None, refused: str | None = None) -> Trace:
        """The same step, which knows how it would be with its loss in chunks, or why it cannot be."""
    @property
    def chunked(self) -> Trace | None:
        """The same step with its loss in chunks, where both are known. Files have one step."""
    def save(self, path: _Path) -> None:
        """Writes the trace; a name that ends in `.zst` compresses it."""
    def to_bytes(self, *, compress: bool = False) -> bytes:
        """The content of a trace file."""
    @property
    def name(self) -> str:
        """What was traced."""
    @property
    def device(self) -> str | None:
        """The kind of device that it was traced for: `cpu` or `cuda`, if it says so."""
    @property
    def facts(self) -> dict[str, str]:
        """How it was traced."""
    @property
    def modules(self) -> list[Module]:
        """The modules, each after the module that holds it."""
    @property
    def ops(self) -> list[Op]:
        """The operators, in the order of execution."""
    def peak(self, allocator: _Allocator | None = None) -> int:
        """The highest bytes in use. Memory is rounded as CUDA does, unless the step was captured on the CPU."""
    def categories(self, allocator: _Allocator | None = None) -> dict[str, int]:
        """Bytes by category where the total is highest."""
    def timeline(self, allocator: _Allocator | None = None) -> list[int]:
        """Bytes in use after every operator."""
    def stats(
        self,
        *,
        device: _Device = ...,
        device_file: _Path | None = None,
        cost: _Cost = "physical",
        cost_table: CostTable | _Path | None = None,
        allocator: _Allocator | None = None,
        alloc_conf: str | None = None,
        timeline: bool = False,
    ) -> dict[str, Any]:
        """What `rematic stats --json` says."""
    def __len__(self) -> int: ...
    def _repr_html_(self) -> str: ...

@final
class Region:
    """One call of a module, or a run of calls, that is checkpointed."""

    @property
    def module(self) -> str:
        """The module's full name."""
    @property
    def call(self) -> int:
        """Which of the module's calls in the step; the first is 0."""
    @property
    def then(self) -> list[tuple[str, int]]:
        """The calls that follow directly and are checkpointed together with it, as one: their modules, and which of the calls."""
    @property
    def discard(self) -> float:
        """The share of what autograd would hold that is freed."""
    @property
    def freed(self) -> int:
        """Bytes freed between its forward and its backward."""
    @property
    def recompute_ms(self) -> float:
        """Time of recomputation."""
    @property
    def policy(self) -> list[tuple[str, bool]]:
        """All of its forward operators in order: name with overload, and whether its output is saved, on the device or on the
        host."""
    @property
    def offloaded(self) -> list[int]:
        """The positions of those whose outputs lie on the host between forward and backward."""
    @property
    def skipped(self) -> list[int]:
        """The positions of those that do not run again, as nothing reads what they make."""
    @property
    def offload_bytes(self) -> int:
        """Bytes that go to the host, and come back."""
    @property
    def leaves_with(self) -> int | None:
        """The region of the plan, from 0, with the end of whose forward these outputs leave the device."""
    @property
    def returns_with(self) -> int | None:
        """The region with the beginning of whose recomputation they come back."""
    @property
    def saved(self) -> list[str]:
        """The operators whose output is saved, in order."""

@final
class Variant:
    """What a plan decides for one of the steps that it was made for."""

    @property
    def name(self) -> str:
        """What it is called; empty if it is the only one."""
    @property
    def opening(self) -> list[str]:
        """The first operators of its forward, up to where it differs from each other variant."""
    @property
    def facts(self) -> dict[str, str]:
        """How it was traced."""
    @property
    def peak(self) -> int:
        """The peak under the plan, as replayed."""
    @property
    def baseline_peak(self) -> int:
        """The peak without a plan."""
    @property
    def step_ms(self) -> float:
        """Time of the step without recomputation."""
    @property
    def recompute_ms(self) -> float:
        """Time of recomputation."""
    @property
    def regions(self) -> list[Region]:
        """The checkpointed regions, in the order of forward."""

@final
class Plan:
    """What to drop and recompute in a step, with what was promised. Printed, it is the command line's table."""

    @staticmethod
    def load(path: _Path) -> Plan:
        """Reads a plan file."""
    @staticmethod
    def from_json(text: str) -> Plan:
        """Reads the text of a plan file."""
    def save(self, path: _Path) -> None:
        """Writes the plan to a file."""
    def to_json(self) -> str:
        """The text of a plan file."""
    def to_python(self) -> str:
        """A Python file with a function `apply_plan(model)`, which applies the plan with torch alone.

        A plan with several variants is refused.
        """
    @property
    def outcome(self) -> Literal["fits", "planned"]:
        """`fits` if the step is within the budget with nothing to drop, as replayed."""
    @property
    def source(self) -> str:
        """The model."""
    @property
    def facts(self) -> dict[str, str]:
        """How the step was traced."""
    @property
    def device(self) -> str:
        """The device that times are for."""
    @property
    def world_size(self) -> int:
        """Devices among which parameters, gradients and optimizer state are spread."""
    @property
    def budget(self) -> int:
        """The most bytes that may be in use."""
    @property
    def peak(self) -> int:
        """The peak under the plan, as replayed: the promise. Of several variants the highest."""
    @property
    def forward_bytes(self) -> int | None:
        """How much the model's first forward has made that is in use after its last operator; None in older plans."""
    @property
    def baseline_peak(self) -> int:
        """The peak without a plan. Of several variants the highest."""
    @property
    def memory(self) -> dict[str, int] | None:
        """What the step under the plan takes of the device: allocated_bytes, reserved_bytes (by PyTorch's allocator),
        context_bytes, usable_bytes, and whether it fits.

        Of several variants the one that reserves most. None for the CPU, and for a plan that was read.
        """
    @property
    def variants(self) -> list[Variant]:
        """What the plan was made for, each with its own decisions; one if it was made for one step.

        The times, facts and regions of the plan itself are those of the first.
        """
    @property
    def step_ms(self) -> float:
        """Time of the step without recomputation."""
    @property
    def recompute_ms(self) -> float:
        """Time of recomputation."""
    @property
    def offload_bytes(self) -> int:
        """Bytes that go to the host, and come back."""
    @property
    def host_bytes(self) -> int:
        """What they take of the host's pinned memory."""
    @property
    def stall_ms(self) -> float:
        """How long the device waits for these copies."""
    @property
    def loss(self) -> tuple[str, int] | None:
        """The layer whose loss is computed in chunks, by its path in the model, and how many; None if the loss is as the model computes it."""
    @property
    def lower_bound_ms(self) -> float:
        """The bound of the planner's model."""
    @property
    def regions(self) -> list[Region]:
        """The checkpointed regions, in the order of forward."""
    def _repr_html_(self) -> str: ...

@final
class Replay:
    """A step as it runs under a plan."""

    @property
    def plan(self) -> Plan:
        """The plan, with peaks and times as replayed."""
    @property
    def peak(self) -> int:
        """The highest bytes in use."""
    @property
    def baseline_peak(self) -> int:
        """The same without a plan."""
    @property
    def categories(self) -> dict[str, int]:
        """Bytes by category where the total is highest."""
    @property
    def recompute_ms(self) -> float:
        """Time of the operators that run again."""
    @property
    def recompute_flops(self) -> int:
        """Their floating-point operations."""
    @property
    def recomputed(self) -> list[str]:
        """Their names, in the order in which they run again."""

@final
class CurvePoint:
    """The plan for one budget."""

    @property
    def budget(self) -> int: ...
    @property
    def peak(self) -> int: ...
    @property
    def reserved(self) -> int | None:
        """What PyTorch's allocator reserves under its plan; None on the CPU."""
    @property
    def fits(self) -> bool | None:
        """Whether the device has that; None on the CPU."""
    @property
    def recompute_ms(self) -> float: ...
    @property
    def offload_bytes(self) -> int: ...
    @property
    def host_bytes(self) -> int: ...
    @property
    def stall_ms(self) -> float: ...
    @property
    def lower_bound_ms(self) -> float: ...

@final
class Curve:
    """Budget against time, the largest budget first. Printed, it is the command line's table."""

    @property
    def points(self) -> list[CurvePoint]: ...
    @property
    def step_ms(self) -> float:
        """Time of the step without recomputation."""
    def to_json(self) -> str:
        """What `rematic curve --json` says."""
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> CurvePoint: ...
    def __iter__(self) -> Iterator[CurvePoint]: ...
    def _repr_html_(self) -> str: ...

@final
class Fit:
    """What fits. Printed, it is the command line's answer."""

    @property
    def fits(self) -> bool:
        """Whether anything fits, if only with a plan."""
    def to_json(self) -> str:
        """What `rematic fit --json` says."""

@final
class Explanation:
    """Why a step peaks where it does, and the ways to reduce the peak. Printed, it is the command line's answer."""

    def to_json(self) -> str:
        """What `rematic explain --json` says."""

@final
class Signature:
    """What an operator's time depends on, and how many operators of a step have it."""

    @property
    def op(self) -> str:
        """Its name with overload (`mm.default`)."""
    @property
    def inputs(self) -> list[_Layout]:
        """What it reads: layouts as (dtype, shape, strides)."""
    @property
    def outputs(self) -> list[_Layout]:
        """What it returns."""
    @property
    def count(self) -> int:
        """Operators of the step that have it."""

@final
class CostTable:
    """Measured times of operators on one device."""

    def __new__(cls, device: str, rows: Sequence[tuple[Signature, float]]) -> CostTable:
        """A table from what was measured: (signature, milliseconds) for each."""
    @staticmethod
    def load(path: _Path) -> CostTable:
        """Reads a table from a file."""
    @staticmethod
    def from_json(text: str) -> CostTable:
        """Reads the text of a table."""
    def save(self, path: _Path) -> None:
        """Writes the table to a file."""
    def to_json(self) -> str:
        """The text of the table."""
    @property
    def device(self) -> str:
        """What it was measured on."""
    def __len__(self) -> int: ...

def plan(
    trace: Trace | Sequence[Trace] | Mapping[str, Trace],
    budget: _Size | None = None,
    *,
    device: _Device = ...,
    device_file: _Path | None = None,
    planner: Literal["exact", "greedy", "milp"] = "exact",
    cost: _Cost = "physical",
    cost_table: CostTable | _Path | None = None,
    only: _Patterns | None = None,
    never: _Patterns | None = None,
    whole: bool = False,
    runs: bool = True,
    world_size: int = 1,
    allocator: _Allocator | None = None,
    alloc_conf: str | None = None,
    gap: float | None = None,
    time_limit: float | None = None,
    usable: _Size | None = None,
    host_memory: _Size | None = None,
    host_bandwidth: float | str | None = None,
    loss: _Loss | None = None,
) -> Plan:
    """Finds what to drop and recompute so that the step fits a budget, at the least extra time.

    Several traces, in a list or by name, are variants of the step: each is planned for the budget, and the model follows the
    one that runs. A budget is for what tensors take. Without one, what PyTorch's allocator reserves for them has to fit the
    device, beside the CUDA context: `usable` is its memory as the driver says, by default that of the data sheet, and
    `alloc_conf` how the allocator is set, by default as PYTORCH_CUDA_ALLOC_CONF says. Raises `Infeasible` if no plan fits.

    `runs` says whether calls of modules that follow one another may be checkpointed as one, as where single calls do not reach the
    budget or cost much; a plan for several variants has none.

    The planner `milp` goes by torch's model of memory; where the replayed plan is above the budget all the same, it warns.
    Only it takes `gap`, the share by which its plan may be slower than the best, and `time_limit`, in seconds.

    With `host_memory`, outputs may also be moved to pinned memory of the host and back, in at most so much of it;
    `host_bandwidth` is what copies reach, in GB/s of one direction, by default by the device's data sheet.

    `loss` is for a trace that was made with loss="auto", and knows its step with the plain loss and with one that is computed in
    chunks: "plain", "chunked", or "auto" for the one with which the planned step is faster. Sums are taken in another order, so that
    gradients are equal up to rounding.
    """

def curve(
    trace: Trace,
    points: int = 50,
    *,
    device: _Device = ...,
    device_file: _Path | None = None,
    cost: _Cost = "physical",
    cost_table: CostTable | _Path | None = None,
    only: _Patterns | None = None,
    never: _Patterns | None = None,
    whole: bool = False,
    runs: bool = True,
    world_size: int = 1,
    allocator: _Allocator | None = None,
    alloc_conf: str | None = None,
    host_memory: _Size | None = None,
    host_bandwidth: float | str | None = None,
) -> Curve:
    """Plans for budgets from the step as it is down to the least that can be reached."""

def fit(
    step: Callable[[int | None, int | None, int, int, bool], Trace],
    varies: tuple[bool, bool, bool, bool],
    *,
    batch: int | None,
    seq: int | None,
    gpus: int | None,
    tp: int | None,
    mixed: bool,
    device: _Device | None,
    device_file: _Path | None,
    alloc_conf: str | None,
) -> Fit:
    """What fits, of steps that `step` makes."""

def explain(
    trace: Trace,
    budget: _Size | None = None,
    *,
    device: _Device = ...,
    device_file: _Path | None = None,
    cost: _Cost = "physical",
    cost_table: CostTable | _Path | None = None,
    world_size: int = 1,
    allocator: _Allocator | None = None,
    alloc_conf: str | None = None,
) -> Explanation:
    """Explains the peak of a step: what is in memory there, and the ways to reduce it, each with the whole step replayed."""

def report(
    trace: Trace,
    output: _Path,
    *,
    budget: _Size | None = None,
    plan: Plan | None = None,
    device: _Device = ...,
    device_file: _Path | None = None,
    cost: _Cost = "physical",
    cost_table: CostTable | _Path | None = None,
    only: _Patterns | None = None,
    never: _Patterns | None = None,
    whole: bool = False,
    runs: bool = True,
    world_size: int | None = None,
    allocator: _Allocator | None = None,
    alloc_conf: str | None = None,
) -> None:
    """Writes one HTML page that shows a step, its peak, its plan and the plans for other budgets.

    Without a budget, the plan's or what fits the device is taken; without a plan, the planner's own; without a world size, the plan's.
    """

def replay(
    trace: Trace,
    plan: Plan,
    *,
    device: _Device | None = None,
    device_file: _Path | None = None,
    cost: _Cost = "physical",
    cost_table: CostTable | _Path | None = None,
    world_size: int | None = None,
    allocator: _Allocator | None = None,
    alloc_conf: str | None = None,
) -> Replay:
    """Replays the step under a plan, and checks that the plan, or one of its variants, is for it.

    Device and world size are the plan's.
    """

def devices() -> list[str]:
    """The names of the known devices."""

def card_kind(name: str, capability: int | None = None) -> str:
    """The kind of card that a device of that name is, or one of that compute capability (80 for 8.0)."""

def signatures(trace: Trace) -> list[Signature]:
    """The distinct signatures of a step, in the order in which they run first.

    Operators for which no kernel runs have none.
    """

def modelled_shares(trace: Trace) -> list[float]:
    """For each signature, the share of the step's time that the physical rule gives to its operators."""

def sac_milp(
    nodes: Sequence[Mapping[str, Any]],
    inside: Sequence[Sequence[int]],
    memory_budget: float,
    world_size: int,
    ac_units: Sequence[str],
    fsdp_units: Sequence[str],
) -> tuple[list[tuple[str, float]], float, int] | None: ...
def optimal_policy(stats: Any, memory_budget: float) -> list[int] | None: ...
def greedy_order(
    stats: Any,
) -> tuple[
    set[int],
    set[int],
    dict[int, set[int]],
    dict[int, set[int]],
    list[tuple[int, list[int], int, float, float]],
]: ...
def tradeoff_curve(
    steps: Sequence[tuple[int, float]], memory: int, runtime: float, segments: int
) -> tuple[list[tuple[float, float]], list[float], list[float], list[float]]: ...
def torch_roofline(flops: float, tflops: float, bytes: float, gigabytes_per_second: float) -> float: ...
@final
class Tally:
    """Bytes in use by device and kind, while a program runs."""

    def __new__(cls, kinds: Sequence[Any], total: Any) -> Tally: ...
    def add_device(self, device: Any, block: int) -> int: ...
    def see(self, storage: int, device: int, size: int, kind: int) -> bool: ...
    def mark(self, storage: int, device: int, size: int, kind: int) -> bool: ...
    def is_known(self, storage: int) -> bool: ...
    def bytes_of(self, storage: int) -> int: ...
    def resize(self, storage: int, size: int) -> None: ...
    def remove(self, storage: int) -> None: ...
    def usage(self) -> dict[Any, dict[Any, int]]: ...
    def peak(self) -> dict[Any, dict[Any, int]]: ...
    def restart_peak(self) -> None: ...
    def enter(self, name: str) -> None: ...
    def leave(self, name: str) -> None: ...
    def leave_all(self) -> None: ...
    def watch(self, name: str) -> int: ...
    def unwatch_all(self) -> None: ...
    def begin(self, scope: int, backward: bool) -> bool: ...
    def peak_of(self, scope: int, backward: bool) -> dict[Any, dict[Any, int]] | None: ...
    def highest_of(self, scope: int) -> dict[Any, int]: ...
    def observe(self, backward: bool) -> None: ...

@final
class Runtimes:
    """Milliseconds by module, while a program runs."""

    def __new__(cls) -> Runtimes: ...
    def enter(self, name: str) -> None: ...
    def leave(self, name: str) -> None: ...
    def leave_all(self) -> None: ...
    def add(self, millis: float, backward: bool) -> None: ...
    def total(self) -> float: ...
    def rows(self) -> list[tuple[str, float | None, float | None]]: ...

def main(arguments: Sequence[str]) -> int: ...
