"""A callback for the `Trainer` of transformers, and for those that derive from it, as TRL's `SFTTrainer`.

    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.add_callback(PlanCallback(trainer, budget="38GiB"))
    trainer.train()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.utils import logging

from rematic._apply.batches import calls_of
from rematic._apply.wrapping import AUDITED_STEPS
from rematic._core import Plan

from ._planning import Planning, is_compiled, optimizer_of, single

# Below transformers' own, so that its verbosity counts.
LOGGER = "transformers.rematic"


class PlanCallback(TrainerCallback):
    """Makes the model that a trainer trains fit a budget, or the GPU it is on.

    The step is captured as `trainer.training_step` runs it, when its first batch is there, and again when a batch is larger than
    those before. `budget`, `device`, `variants` and `audit` are those of `rematic.auto`; the CPU needs a budget. Without `required`, training
    goes on where there can be no plan, and a warning says why. When training is over, the plan is taken off; `plan` has it.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        budget: int | str | None = None,
        device: Any = None,
        required: bool = True,
        variants: Sequence[Any] = (),
        audit: int = AUDITED_STEPS,
    ) -> None:
        if not isinstance(trainer, Trainer):
            raise TypeError(
                f"PlanCallback takes the trainer whose steps it plans, not {type(trainer).__name__}; make the trainer first, and then "
                "trainer.add_callback(PlanCallback(trainer, budget=…))"
            )
        self._trainer = trainer
        self._variants = variants
        self._planning = Planning(logging.get_logger(LOGGER), budget, device, required, audit)
        self._own_step: Callable[..., Tensor] | None = None

    @property
    def plan(self) -> Plan | None:
        """The plan that the model follows, or did until training was over."""
        return self._planning.plan

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Looks at the batches from here on."""
        self._release()
        self._planning.begin()
        if self._planning.refuse_if(self._reasons()):
            return
        self._own_step = self._trainer.training_step
        self._trainer.training_step = self._step

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Takes the plan off."""
        self._release()
        self._planning.remove()

    def _release(self) -> None:
        if self._own_step is not None:
            del self._trainer.training_step
            self._own_step = None

    def _reasons(self) -> dict[str, bool]:
        """Why there can be no plan."""
        trainer = self._trainer
        return {
            "The Trainer compiles the model, and the compiler decides by itself what to keep, so that a plan would promise "
            "nothing; set torch_compile=False, or train without the callback": is_compiled(trainer.model_wrapped),
            "The model recomputes its layers already; set gradient_checkpointing=False in the trainer's arguments (TRL's default is "
            "True), and the plan recomputes what it takes to fit, and no more": _checkpoints(trainer.model),
            "DeepSpeed keeps and moves parameters by its own rules, which are not planned for; train with FSDP2, or without the "
            "callback": bool(trainer.is_deepspeed_enabled),
        }

    def _step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """In the place of the trainer's own step: plans before it."""
        assert self._own_step is not None
        if self._planning.is_due(inputs):
            variants = [*self._variants, *([single(inputs)] if self._meets_a_single() else [])]
            calls = calls_of(model, (), inputs, variants)
            steps = {
                name: _TrainingStep(self._trainer, self._own_step, batch, num_items_in_batch) for name, (_, batch) in calls.items()
            }
            self._planning.make(model, steps, optimizer_of(self._trainer.optimizer), inputs)
        return self._own_step(model, inputs, num_items_in_batch)

    def _meets_a_single(self) -> bool:
        """Whether the last batch of an epoch has one sample, which makes other views."""
        try:
            samples = len(self._trainer.train_dataset)
        except TypeError:
            return False
        size = self._trainer.args.train_batch_size
        return size > 1 and samples % size == 1 and not self._trainer.args.dataloader_drop_last


class _TrainingStep:
    """A step as the trainer takes it. Of several that accumulate, one that finds gradients, which is the highest."""

    def __init__(self, trainer: Trainer, own_step: Callable[..., Tensor], inputs: Mapping[str, Any], items: Any) -> None:
        self.trainer = trainer
        self.own_step = own_step
        self.inputs = inputs
        self.items = items

    def __call__(self, model: nn.Module, optimizer: Any) -> Tensor:
        loss = self.own_step(model, dict(self.inputs), self.items)
        # The trainer reports the norm where it does not clip, too.
        limit = self.trainer.args.max_grad_norm or float("inf")
        self.trainer.accelerator.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        if self.trainer.args.gradient_accumulation_steps == 1:
            model.zero_grad()
        return loss


def _checkpoints(model: Any) -> bool:
    return any(getattr(module, "gradient_checkpointing", False) is True for module in model.modules())

