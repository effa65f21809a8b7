"""Plans inside the loops of others. Each example trains an epoch with a plan and without: the weights are the same, bit for bit, and
the real peak is within the promise."""

from __future__ import annotations

import gc
import importlib.util
import logging
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import rematic
from reality import HAS_BF16, TOLERANCE
from test_loops import model_of

transformers = pytest.importorskip("transformers")

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "examples"


def example(name: str, *needs: str) -> Any:
    for library in needs:
        pytest.importorskip(library)
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured(train: Callable[[], Any], settled: bool = False) -> tuple[Any, int]:
    """What a training gives, and the most bytes in use after the optimizer's first step, of all that it has made; settled, the most
    that are in use when an operator is done. On the CPU, an operator on tensors of two types makes copies in one type first."""
    gc.collect()
    gc.disable()
    try:
        with profile(profile_memory=True, activities=[ProfilerActivity.CPU]) as profiled:
            result = train()
    finally:
        gc.enable()
    events = profiled.profiler.kineto_results.events()
    steps = [event for event in events if event.name().startswith("Optimizer.step#")]
    start = min(event.start_ns() + event.duration_ns() for event in steps)
    ends = [(end, len(events), 0) for end in ends_of_operators(events)] if settled else []
    sizes = [(event.start_ns(), n, event.nbytes()) for n, event in enumerate(events) if event.name() == "[memory]"]
    total = highest = 0
    for time, n, size in sorted(sizes + ends):
        total += size
        highest = max(highest, total if time >= start and (n == len(events) or not settled) else 0)
    return result, highest


def ends_of_operators(events: Any) -> Iterator[int]:
    """When operators are done that no other operator has called."""
    over = 0
    for _, end in sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name().startswith("aten::")):
        if end > over:
            yield end
            over = end


def check_equal(found: nn.Module, expected: nn.Module) -> None:
    weights = found.state_dict()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(weights[name], tensor), name


def check_trained(train: Callable[..., Any], budget: int, data: int, settled: bool = False, **settings: Any) -> rematic.Plan:
    """Trains with a plan and without; `data` are the bytes of the samples."""
    (plain, _), above = measured(lambda: train(None, **settings), settled)
    (model, plan), real = measured(lambda: train(budget, **settings), settled)
    check_equal(model, plain)
    print(f"\nplain {above - data:,} (predicted {plan.baseline_peak:,}), planned {real - data:,} (promised {plan.peak:,}) of {plan.budget:,}")
    assert plan.outcome == "planned" and plan.peak <= budget < above - data
    # The loader may have the next batch already, and the loop has numbers for its log.
    assert real - data <= plan.peak * (1 + TOLERANCE)
    return plan


@pytest.fixture(autouse=True)
def anew() -> None:
    """accelerate remembers the settings of the first that asked."""
    pytest.importorskip("accelerate").state.AcceleratorState._reset_state(True)


@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2, "bf16": True}], ids=["plain", "mixed"])
def test_the_trainer_of_transformers(settings: dict[str, Any]) -> None:
    settled = "bf16" in settings and not HAS_BF16
    check_trained(example("with_trainer").train, 9 << 20, 32 * 64 * 8, settled, **settings)


def test_trl() -> None:
    check_trained(example("with_trl", "trl").train, 76 << 20, 0)


@pytest.mark.parametrize("settings", [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 1.0}], ids=["plain", "accumulating"])
def test_lightning(settings: dict[str, Any]) -> None:
    check_trained(example("with_lightning", "lightning").train, 16 << 20, 32 * 64 * 64 * 4, **settings)


def test_lightning_in_mixed_precision(recwarn: pytest.WarningsRecorder) -> None:
    train = example("with_lightning", "lightning").train
    check_trained(train, 14 << 20, 32 * 64 * 64 * 4, settled=True, precision="bf16-mixed")
    assert not [warning for warning in recwarn if "that the plan promises" in str(warning.message)]


@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2, "mixed_precision": "bf16"}], ids=["plain", "mixed"])
def test_accelerate(settings: dict[str, Any]) -> None:
    check_trained(example("with_accelerate").train, 9 << 20, 32 * 64 * 8, **settings)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_torchtitan(alone: None) -> None:
    check_trained(example("with_torchtitan", "torchtitan").train, 140 << 20, 4 * 2 * 257 * 8)


def test_torchtitan_on_a_gpu_that_is_not_there(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attention for language models, which runs on GPUs only, is captured and planned; that by flex is refused."""
    titan = example("with_torchtitan", "torchtitan")
    from torchtitan.models.common.attention import FlexAttention

    kinds = [FlexAttention, type(titan.model_registry("debugmodel", attn_backend="varlen").model.layers[0].attention.inner_attention)]
    monkeypatch.setattr(titan.utils, "device_type", "cuda")

    class Enough(Exception):
        pass

    def build(kind: Any, budget: int) -> Any:
        monkeypatch.setattr(titan.ScaledDotProductAttention, "Config", kind)
        planned: list[Any] = []
        own = titan.parallelize

        def parallelize(function: Any, budget: Any) -> Any:
            made = own(function, budget=budget, device="h100")

            def then(model: Any, **settings: Any) -> Any:
                made(model, **settings)
                planned.append((model, made.plan))
                raise Enough

            return then

        with monkeypatch.context() as patch:
            patch.setattr(titan, "parallelize", parallelize)
            with pytest.raises(Enough):
                titan.train(budget)
        return planned[0]

    _, plan = build(kinds[1], 1 << 30)
    model, plan = build(kinds[1], plan.peak * 9 // 10)
    assert plan.outcome == "planned" and plan.device == "h100" and "forward" in model.__dict__
    with pytest.raises(rematic.PlanError, match='FlexAttention is made by the compiler.*attn_backend="varlen"'):
        build(kinds[0].Config, 1 << 30)


# ---- what is refused, and what happens then ----


class Heard(logging.Handler):
    """What a library's logger was told."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.said: list[str] = []
        logger = logging.getLogger(name)
        logger.addHandler(self)
        logger.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(f"{record.levelname}: {record.getMessage()}")


class Samples(list[Any]):
    """Sequences of tokens, of these lengths."""

    def __init__(self, *lengths: int) -> None:
        rows = [torch.arange(3, 3 + length) for length in lengths]
        super().__init__({"input_ids": row, "labels": row} for row in rows)


def trainer_of(model: nn.Module, data: Any, place: pathlib.Path, **settings: Any) -> Any:
    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(data)

    settings = {"per_device_train_batch_size": 4, "num_train_epochs": 1, "save_strategy": "no", "disable_tqdm": True, **settings}
    return InOrder(model, transformers.TrainingArguments(str(place), use_cpu=True, report_to=[], **settings), train_dataset=data)


def test_a_budget_that_is_too_low(tmp_path: pathlib.Path) -> None:
    from rematic.integrations.transformers import LOGGER, PlanCallback

    data = Samples(*[24] * 8)
    model, initial, plain = model_of("llama"), model_of("llama"), model_of("llama")
    trainer = trainer_of(model, data, tmp_path)
    trainer.add_callback(PlanCallback(trainer, budget="10KiB"))
    with pytest.raises(rematic.Infeasible, match="Cannot fit 10.00 KiB: the least reachable peak is"):
        trainer.train()
    check_equal(model, initial)
    assert trainer.state.global_step == 0
    heard = Heard(LOGGER)
    trainer = trainer_of(model, data, tmp_path)
    callback = PlanCallback(trainer, budget="10KiB", required=False)
    trainer.add_callback(callback)
    trainer.train()
    trainer_of(plain, data, tmp_path).train()
    check_equal(model, plain)
    assert callback.plan is None and len(heard.said) == 1
    assert heard.said[0].startswith("WARNING: Rematic: training goes on without a plan. LlamaForCausalLM")
    assert "Cannot fit 10.00 KiB" in heard.said[0]


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"gradient_checkpointing": True}, {"budget": "1GiB"}, "recomputes its layers already; set gradient_checkpointing=False"),
        ({"torch_compile": True}, {"budget": "1GiB"}, "compiler decides by itself what to keep.*set torch_compile=False"),
        ({}, {}, "How much memory the CPU may use is not known"),
        ({}, {"budget": "1GiB", "device": "h100"}, "The model trains on the CPU, and the plan is asked for `h100`"),
        ({}, {"budget": "12 parsecs"}, "12 parsecs"),
    ],
)  # fmt: skip
def test_what_the_callback_refuses(
    settings: dict[str, Any], options: dict[str, Any], message: str, tmp_path: pathlib.Path
) -> None:
    from rematic.integrations.transformers import PlanCallback

    trainer = trainer_of(model_of("llama"), Samples(*[9] * 4), tmp_path, **settings)
    trainer.add_callback(PlanCallback(trainer, **options))
    with pytest.raises(rematic.RematicError, match=message):
        trainer.train()
    assert trainer.state.global_step == 0
    trainer.remove_callback(PlanCallback)


def test_a_callback_without_its_trainer() -> None:
    from rematic.integrations.transformers import PlanCallback

    with pytest.raises(TypeError, match=r"takes the trainer whose steps it plans, not str; make the trainer first"):
        PlanCallback("a trainer")
    with pytest.raises(rematic.PlanError, match="`audit` is how many steps"):
        PlanCallback(transformers.Trainer.__new__(transformers.Trainer), budget="1GiB", audit=-1)


def test_batches_that_grow_and_a_last_one_of_one(tmp_path: pathlib.Path) -> None:
    """A larger batch is planned for; where it does not fit, the plan that goes lowest is taken. A batch of one is a variant."""
    from rematic.integrations.transformers import LOGGER, PlanCallback

    data = Samples(*[12] * 4, *[24] * 4, *[56] * 4, 40)

    def trained(budget: str | None) -> tuple[nn.Module, Any]:
        trainer = trainer_of(model_of("llama"), data, tmp_path)
        callback = None if budget is None else PlanCallback(trainer, budget=budget)
        if callback is not None:
            trainer.add_callback(callback)
        trainer.train()
        return trainer.model, callback

    heard = Heard(LOGGER)
    model, callback = trained("420KiB")
    check_equal(model, trained(None)[0])
    assert "forward" not in model.__dict__ and "training_step" not in callback._trainer.__dict__
    levels = [said.partition(":")[0] for said in heard.said]
    assert levels == ["INFO", "INFO", "WARNING", "INFO"], heard.said
    assert "the step fits as it is" in heard.said[0] and "modules recompute" in heard.said[1]
    assert "a larger batch does not fit" in heard.said[2] and callback.plan.peak > 420 << 10
    assert len(callback.plan.variants) == 2


def test_what_the_lightning_callback_refuses(tmp_path: pathlib.Path) -> None:
    lightning = pytest.importorskip("lightning")
    from rematic.integrations.lightning import LOGGER, PlanCallback

    heard = Heard(LOGGER)
    module = example("with_lightning").Classifier()
    loader = torch.utils.data.DataLoader([(torch.zeros(4, 64), torch.tensor(1))] * 2, batch_size=2)

    def fit(module: Any, **options: Any) -> None:
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=[PlanCallback(**options)], **quiet).fit(module, loader)

    with pytest.raises(rematic.PlanError, match="The module is compiled.*fit the module as it is"):
        fit(torch.compile(example("with_lightning").Classifier()), budget="1GiB")
    with pytest.raises(rematic.Infeasible, match="Cannot fit 10.00 KiB"):
        fit(module, budget="10KiB")
    fit(module, budget="10KiB", required=False)
    assert "training goes on without a plan" in heard.said[-1]
    module.automatic_optimization = False
    with pytest.raises(rematic.PlanError, match="Classifier optimizes by itself.*rematic.capture_step"):
        fit(module, budget="1GiB")


def test_what_the_hook_refuses() -> None:
    accelerate = pytest.importorskip("accelerate")
    from rematic.integrations.accelerate import PlanHook

    accelerator = accelerate.Accelerator(cpu=True)
    model = model_of("llama")
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(rematic.PlanError, match="The model is compiled.*without dynamo_backend"):
        PlanHook(accelerator, torch.compile(model), optimizer, budget="1GiB")
    with pytest.raises(rematic.CaptureError, match="`loss` must be a function"):
        PlanHook(accelerator, model, optimizer, budget="1GiB", loss=3)
    tokens = torch.arange(3, 27).expand(4, 24)
    hook = PlanHook(accelerator, model, optimizer, budget="10KiB")
    with torch.no_grad():
        model(input_ids=tokens)
    with pytest.raises(rematic.Infeasible):
        model(input_ids=tokens, labels=tokens)
    hook.remove()
    assert "forward" not in model.__dict__


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ac_config": object()}, "recomputes activations already"),
        ({"compiles": True}, "set compile.enable=False"),
        ({"budget": 1 << 10}, "Cannot fit 1.00 KiB"),
    ],
)  # fmt: skip
def test_what_parallelize_refuses(change: dict[str, Any], message: str) -> None:
    pytest.importorskip("torchtitan")
    from types import SimpleNamespace

    from torchtitan.tools import utils

    from rematic.integrations.torchtitan import parallelize

    utils.device_type = "cpu"

    class Model(nn.Embedding):
        def forward(self, tokens: Any, positions: Any) -> Any:
            return super().forward(tokens)

    model = Model(64, 32, device="meta")
    settings = {
        "training": SimpleNamespace(local_batch_size=2, seq_len=8, max_norm=1.0, global_batch_size=-1, disable_cuda_graphs=False),
        "compile_config": SimpleNamespace(enable=change.get("compiles", False), components=["model"]),
        "parallel_dims": SimpleNamespace(pp_enabled=False, dp_replicate=1, dp_shard=1),
        "ac_config": change.get("ac_config"),
    }
    with pytest.raises(rematic.RematicError, match=message):
        parallelize(lambda model, **_: model, budget=change.get("budget", "1GiB"))(model, **settings)
