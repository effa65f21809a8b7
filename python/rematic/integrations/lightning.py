"""A callback for the `Trainer` of Lightning, of `lightning` or `pytorch_lightning`.

    trainer = lightning.Trainer(callbacks=[PlanCallback(budget="38GiB")])
    trainer.fit(module, loader)
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from rematic._apply.batches import calls_of
from rematic._apply.wrapping import AUDITED_STEPS
from rematic._core import Plan

from ._planning import Planning, Step, is_compiled, optimizer_of, single

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    from pytorch_lightning import Callback

# Below Lightning's own, whose handler and level count.
LOGGER = f"{Callback.__module__.removesuffix('.callbacks.callback')}.rematic"


class PlanCallback(Callback):
    """Makes the module that is fitted fit a budget, or the GPU it is on.

    The step is captured as its `training_step` runs it, with the trainer's precision, accumulation and clipping, when the first
    batch is there, and again when a batch is larger than those before. `budget`, `device` and `audit` are those of `rematic.auto`; the CPU needs
    a budget. `variants` are further batches that run other operators. Without `required`, training goes on where there can be no
    plan, and a warning says why. When training is over, the plan is taken off; `plan` has it.
    """

    def __init__(
        self,
        *,
        budget: int | str | None = None,
        device: Any = None,
        required: bool = True,
        variants: Sequence[Any] = (),
        audit: int = AUDITED_STEPS,
    ) -> None:
        super().__init__()
        self._variants = variants
        self._planning = Planning(logging.getLogger(LOGGER), budget, device, required, audit)

    @property
    def plan(self) -> Plan | None:
        """The plan that the module follows, or did until training was over."""
        return self._planning.plan

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuses what cannot be planned."""
        self._planning.begin()
        self._planning.refuse_if(
            {
                "The module is compiled, and the compiler decides by itself what to keep, so that a plan would promise nothing; fit "
                "the module as it is, or without the callback": is_compiled(pl_module) or bool(pl_module._compiler_ctx),
                f"{type(pl_module).__name__} optimizes by itself (automatic_optimization=False), so that its step cannot be told "
                "from outside; capture it with rematic.capture_step, and apply its plan before trainer.fit": not (
                    pl_module.automatic_optimization
                ),
            }
        )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Plans before a batch that is larger than those before."""
        if not self._planning.is_due(batch):
            return
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        steps: dict[str, Step] = {
            name: _TrainingStep(trainer, variant, batch_idx) for name, variant in self._batches(trainer, pl_module, batch).items()
        }
        self._planning.make(pl_module, steps, optimizer_of(optimizer), batch)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Takes the plan off."""
        self._planning.remove()

    def _batches(self, trainer: Any, module: nn.Module, batch: Any) -> dict[str, Any]:
        """The batches to plan for, by the names of their variants."""
        variants = [*self._variants, *([single(batch)] if _meets_a_single(trainer.train_dataloader) else [])]
        if isinstance(batch, Mapping):
            return {name: named for name, (_, named) in calls_of(module, (), dict(batch), variants).items()}
        return {"as given": batch, **{f"variant {number}": other for number, other in enumerate(variants, 1)}}


class _TrainingStep:
    """A step as the trainer takes it. Of several that accumulate, one that finds gradients, which is the highest."""

    def __init__(self, trainer: Any, batch: Any, index: int) -> None:
        self.trainer = trainer
        self.batch = batch
        self.index = index

    def __call__(self, module: Any, optimizer: Any) -> Any:
        trainer = self.trainer
        # A copy has none; what it logs is no tensor that stays.
        module.trainer = trainer
        module.log = module.log_dict = _nothing
        arguments = (self.batch, self.index)[: len(inspect.signature(module.training_step).parameters)]
        with trainer.precision_plugin.train_step_context():
            output = module.training_step(*arguments)
        loss: Tensor = output["loss"] if isinstance(output, Mapping) else output
        loss = loss / trainer.accumulate_grad_batches
        if optimizer is not None and trainer.accumulate_grad_batches == 1:
            optimizer.zero_grad()
        module.backward(loss)
        if optimizer is not None:
            trainer.precision_plugin.clip_gradients(
                optimizer, trainer.gradient_clip_val or 0.0, trainer.gradient_clip_algorithm or "norm"
            )
            optimizer.step()
        return output


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _meets_a_single(loader: Any) -> bool:
    """Whether the last batch of an epoch has one sample, which makes other views."""
    size = getattr(loader, "batch_size", None)
    try:
        samples = len(loader.dataset)
    except (AttributeError, TypeError):
        return False
    return size is not None and size > 1 and samples % size == 1 and not loader.drop_last
