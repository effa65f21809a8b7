"""Training loops of others, under a plan, through an epoch: the weights are those of the loop without a plan, bit for bit.

Batches are padded to their longest sequence, gradients are accumulated, the last part is smaller, and checkpoints are saved.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic

transformers = pytest.importorskip("transformers")

VOCABULARY, PAD = 64, 0
# Of 15 sequences in batches of 4; the batches at 0 and 8 need no padding, and the last has 3.
LENGTHS = [9, 9, 9, 9, 12, 7, 5, 12, 8, 8, 8, 8, 11, 6, 10]


def sequences() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in LENGTHS]


def collate(items: list[list[int]]) -> dict[str, Tensor]:
    longest = max(map(len, items))
    ids = torch.tensor([item + [PAD] * (longest - len(item)) for item in items])
    mask = torch.tensor([[1] * len(item) + [0] * (longest - len(item)) for item in items])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    small: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    }  # fmt: skip
    if kind == "bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(**small))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, use_cache=False, attention_dropout=0.1))


def planned(model: nn.Module, **options: Any) -> rematic.Plan:
    """The model under the plan for the largest batch that goes lowest."""
    batch = collate(sorted(sequences(), key=len)[-4:])
    options = {"device": "cpu", "optimizer": False, **options}
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.auto(model, **batch, budget=1, **options)
    plan = rematic.auto(model, **batch, budget=infeasible.value.least_budget, **options)
    assert plan.outcome == "planned" and len(plan.variants) == 2
    return plan


@contextlib.contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[Any]]:
    """Counts how often regions run again, and how often each variant is told."""
    from rematic._apply import modes, variants

    enter, tell = modes.Again.__enter__, variants.Variants.tell
    counts: Counter[Any] = Counter()

    def counting(self: Any) -> Any:
        counts["again"] += 1
        return enter(self)

    def telling(self: Any, told: frozenset[int]) -> None:
        tell(self, told)
        counts[tuple(self.possible)] += 1

    with monkeypatch.context() as patch:
        patch.setattr(modes.Again, "__enter__", counting)
        patch.setattr(variants.Variants, "tell", telling)
        yield counts


def check_trained(train: Callable[[bool], nn.Module], monkeypatch: pytest.MonkeyPatch, several: bool = True) -> None:
    """Trains without a plan and with one."""
    expected = train(False).state_dict()
    with watched(monkeypatch) as counts:
        found = train(True).state_dict()
    assert counts["again"] >= 4
    assert not several or (counts[0,] and counts[1,])
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_the_trainer_of_transformers(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate")

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(sequences())

    def train(under_a_plan: bool) -> nn.Module:
        model = model_of(kind)
        if under_a_plan:
            planned(model)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / str(under_a_plan)), per_device_train_batch_size=4, gradient_accumulation_steps=3,
            num_train_epochs=2, save_strategy="steps", save_steps=1, eval_strategy="epoch", report_to=[], use_cpu=True,
            disable_tqdm=True, learning_rate=1e-2, seed=3,
        )  # fmt: skip
        trainer = InOrder(model, arguments, train_dataset=sequences(), eval_dataset=sequences()[:3], data_collator=collate)
        trainer.train()
        assert list((tmp_path / str(under_a_plan)).glob("checkpoint-*/model.safetensors"))
        return model

    check_trained(train, monkeypatch)


def test_a_loop_with_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerate = pytest.importorskip("accelerate")

    def train(under_a_plan: bool) -> nn.Module:
        model = model_of("bert")
        if under_a_plan:
            planned(model)
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
        loader = torch.utils.data.DataLoader(sequences(), batch_size=4, collate_fn=collate)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        wrapped, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        torch.manual_seed(1)
        for _ in range(2):
            for batch in loader:
                with accelerator.accumulate(wrapped):
                    accelerator.backward(wrapped(**batch).loss)
                    accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
            accelerator.save_state(str(tmp_path / str(under_a_plan)))
        return accelerator.unwrap_model(wrapped)

    check_trained(train, monkeypatch)


# ---- Lightning ----


class Inside:
    """What the Lightning modules below have in common."""

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("entry", ["training_step", "forward", "net"])
def test_the_trainer_of_lightning(entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step calls the network inside, the module itself, or the plan is for the network alone."""
    lightning = pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)

    class Module(Inside, lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model_of("bert")
            self.metric = nn.L1Loss()

        def forward(self, **batch: Tensor) -> Any:
            return self.net(**batch)

        def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
            out = self(**batch) if entry == "forward" else self.net(**batch)
            if index % 2:
                self.log("metric", self.metric(out.logits.detach(), torch.zeros(())))
            return out.loss

        def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
            self.net(**batch)

    def steps(model: nn.Module) -> list[rematic.Trace]:
        longest = sorted(sequences(), key=len)
        batches = [collate(longest[-4:]), collate([longest[-1]] * 4)]

        def step(batch: dict[str, Tensor]) -> Callable[[Any, Any], None]:
            return lambda model, optimizer: model.training_step(batch, 1).backward()

        return [rematic.capture_step(step(batch), model, False, device="cpu") for batch in batches]

    def train(under_a_plan: bool) -> nn.Module:
        model = Module()
        if under_a_plan and entry == "training_step":
            traces = steps(model)
            assert traces[0].facts["forwards"] == "train:net train:metric"
            with pytest.raises(rematic.Infeasible) as infeasible:
                rematic.plan(traces, 1)
            rematic.apply(model, rematic.plan(traces, infeasible.value.least_budget))
        elif under_a_plan:
            planned(model if entry == "forward" else model.net)
        loader = torch.utils.data.DataLoader(sequences(), batch_size=4, collate_fn=collate)
        torch.manual_seed(1)
        trainer = lightning.Trainer(
            max_epochs=2, accumulate_grad_batches=3, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path / str(under_a_plan),
        )  # fmt: skip
        trainer.fit(model, loader, loader)
        assert list((tmp_path / str(under_a_plan)).glob("**/*.ckpt"))
        return model

    check_trained(train, monkeypatch)


def test_a_plan_for_forward_where_training_enters_elsewhere() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model_of("bert")

        def forward(self, **batch: Tensor) -> Any:
            return self.net(**batch)

    model = Module()
    planned(model)
    with pytest.raises(rematic.PlanError, match="called by itself, .* rematic.capture_step .* calls its training_step"):
        model.net(**collate(sequences()[:4]))
