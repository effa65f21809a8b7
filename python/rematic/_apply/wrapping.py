"""Where a plan is put onto a model, and taken off.

A module is wrapped by a `forward` of its own, in the instance: its class, parameters, hooks and place in the model stay
as they are.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rematic._capture.cache import caching_configs, without_cache
from rematic._core import Plan, PlanError

from .audit import Audit
from .compiled import compiled_contexts
from .errors import Mismatch
from .forwards import Forwards
from .modes import Again, Forward, Kept
from .places import Places, places_of
from .policy import Policy
from .snapshot import Snapshot

# How many steps are audited unless another number is given.
AUDITED_STEPS = 3

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_count_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack


class Wrapper:
    """Stands in for the forward of one module."""

    def __init__(self, module: nn.Module, root: Root) -> None:
        self.module = module
        self.root = root
        # A forward that somebody else has put into the instance.
        self.previous: Callable[..., Any] | None = module.__dict__.get("forward")
        self.policies: dict[int, Policy] = {}
        self.calls = 0
        # What a call finds around it, known when the first is checkpointed.
        self._modules: list[tuple[str, nn.Module]] | None = None
        self._places = Places()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_modules": None, "_places": Places()}

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The module's own forward: for signatures."""
        return self.previous or functools.partial(type(self.module).forward, self.module)

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward."""
        if self.previous is not None:
            return self.previous(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A forward that runs again during backward is part of the call that it repeats.
        if not torch.compiler.is_compiling() and _graph_task() != -1:
            return self.plain(*args, **kwargs)
        if self is self.root.wrapper and not self.root.running:
            return self.root.run(args, kwargs)
        return self.run(args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call, checkpointed if the plan says so."""
        call = self.calls
        self.calls = call + 1
        policy = self.policies.get(call)
        if policy is None or not torch.is_grad_enabled() or self.root.rests():
            return self.plain(*args, **kwargs)
        if not self.root.running:
            raise PlanError(
                f"`{policy.module}` was called by itself, not by the model that the plan was applied to, so which of its "
                "calls this is cannot be told; call the model, or apply a plan to the module that training calls"
            )
        if torch.compiler.is_compiling():
            return checkpoint(
                self.plain,
                *args,
                use_reentrant=False,
                context_fn=functools.partial(compiled_contexts, policy),
                **kwargs,
            )
        modes = _count_modes()
        try:
            return self._checkpointed(policy, args, kwargs)
        except Exception as error:
            if _count_modes() > modes:
                # PyTorch 2.6 leaves what checkpointing has entered to the end of the frames that the error holds.
                traceback.clear_frames(error.__traceback__)
            if isinstance(error, Mismatch):
                self._explain(error)
            raise

    def _checkpointed(self, policy: Policy, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._modules is None:
            self._modules = list(self.module.named_modules(prefix=policy.module))
            self._places = places_of(module for _, module in self._modules)
        snapshot = Snapshot(self._modules, self._places, args, kwargs)
        kept = Kept(snapshot, list(self.module.parameters()), self.root.audit(policy))
        # All tensors among the arguments as positional ones: only there does checkpointing look for the device that
        # autocast is for, and for changes in place.
        return checkpoint(
            Call(self.plain, snapshot, args, kwargs),
            *snapshot.leaves,
            use_reentrant=False,
            preserve_rng_state=False,  # the modes do, for what is drawn again
            context_fn=lambda: (Forward(policy, kept), Again(policy, kept)),
        )

    def _explain(self, mismatch: Mismatch) -> None:
        """Adds why other operators run, if it can be seen."""
        never = f'never="{mismatch.module}"'
        for path, module in self.module.named_modules():
            if path and any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
                mismatch.add(
                    f"Inside it `{path}` is sharded by itself and gathers its parameters in the midst; plan without the "
                    f"modules around it ({never}), or shard `{mismatch.module}` as one."
                )
                return


class Call:
    """A call of a module: with its arguments as they are the first time, and as they were then when it runs again."""

    def __init__(
        self, forward: Callable[..., Any], snapshot: Snapshot, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._forward = forward
        self._snapshot = snapshot
        self._given: tuple[tuple[Any, ...], dict[str, Any]] | None = (args, kwargs)

    def __call__(self, *leaves: Tensor) -> Any:
        if self._given is not None:
            args, kwargs = self._given
            # They must not outlive the call: a list goes on to grow.
            self._given = None
            return self._forward(*args, **kwargs)
        with self._snapshot.restored(leaves) as (again, keywords):
            return self._forward(*again, **keywords)


class Root:
    """The model that a plan is applied to, with its wrapped modules."""

    def __init__(self, model: nn.Module, plan: Plan, audit: int) -> None:
        self.model = model
        # How many steps are still audited.
        self.audits = audit
        # A model that evaluates is not checkpointed, unless its plan was put onto it in that state.
        self.trains = model.training
        self.running = False
        self.forwards = Forwards(model, plan)
        self.wrapper = Wrapper(model, self)
        self.wrappers = [self.wrapper]
        self.caching = caching_configs(model)

    def audit(self, policy: Policy) -> Audit | None:
        """What compares a region's two runs, in the first steps."""
        return Audit(policy) if self.audits else None

    def rests(self) -> bool:
        """Whether the model evaluates."""
        return self.trains and not self.model.training

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One forward of the model. Calls are counted from the first forward of a step to its last."""
        trains = torch.is_grad_enabled() and not self.rests()
        counts = self.forwards.has(trains)
        if self.forwards.next == 0:
            self._count_anew()
        before = [wrapper.calls for wrapper in self.wrappers]
        self.running = True
        try:
            with without_cache(self.caching if trains and "use_cache" not in kwargs else ()):
                out = self.wrapper.run(args, kwargs)
            if not counts:
                for wrapper, calls in zip(self.wrappers, before, strict=True):
                    wrapper.calls = calls
            elif self.forwards.advance():
                for wrapper in self.wrappers:
                    self._check_calls(wrapper)
                self._count_anew()
                self.audits = max(0, self.audits - trains)
        except BaseException:
            self.forwards.restart()
            self._count_anew()
            raise
        finally:
            self.running = False
        return out

    def _count_anew(self) -> None:
        for wrapper in self.wrappers:
            wrapper.calls = 0

    def _check_calls(self, wrapper: Wrapper) -> None:
        # A module that is skipped (stochastic depth) takes no memory.
        for call, policy in wrapper.policies.items():
            if 0 < wrapper.calls <= call:
                count = self.forwards.count
                forwards = "one forward of the model calls it" if count == 1 else f"{count} forwards of the model call it"
                raise PlanError(
                    f"The plan checkpoints call {call} (from 0) of `{policy.module}`, but {forwards} only {wrapper.calls} "
                    "times; capture and plan the step as it runs"
                )


def apply(model: nn.Module, plan: Plan, *, audit: int = AUDITED_STEPS) -> None:
    """Makes a model follow a plan: its chosen modules drop activations and recompute them, as the plan says operator by
    operator.

    The plan must be for this model as it runs. If it runs other operators, `Mismatch` names the first that differs. A
    plan for one forward of the model is followed by each; a plan for a step with several is followed by one after the
    other, and from the first again after the last and after the optimizer's step. Without gradients, and when the model
    evaluates, nothing is checkpointed. `remove` takes the plan off.

    In the first `audit` steps, what is recomputed is compared with what was dropped, and `AuditError` names the first operator
    that gave other numbers; this costs a pass over every recomputed tensor, in forward and in backward.
    """
    check_audit(audit)
    if not isinstance(model, nn.Module) or not isinstance(plan, Plan):
        raise TypeError(
            f"apply takes a model and a plan, not {type(model).__name__} and {type(plan).__name__}; plan with rematic.plan, or "
            "read one with rematic.Plan.load"
        )
    model = getattr(model, "_orig_mod", model)
    check_free(model)
    modules = dict(model.named_modules())
    root = Root(model, plan, audit)
    by_module = {id(model): root.wrapper}
    for region in plan.regions:
        # Paths begin with the class of the model, which sharding changes.
        module = modules.get(region.module.partition(".")[2])
        if module is None:
            raise PlanError(
                f"The plan is for another model, {plan.source}: it checkpoints `{region.module}`, and this "
                f"{type(model).__name__} has no such module; capture and plan this one"
            )
        wrapper = by_module.get(id(module))
        if wrapper is None:
            wrapper = by_module[id(module)] = Wrapper(module, root)
            root.wrappers.append(wrapper)
        wrapper.policies[region.call] = Policy(region)
    if plan.regions:
        for wrapper in root.wrappers:
            wrapper.module.__dict__["forward"] = wrapper


def check_audit(audit: Any) -> None:
    """Refuses what is no number of steps."""
    if not isinstance(audit, int) or isinstance(audit, bool) or audit < 0:
        raise PlanError(f"`audit` is how many steps are compared with what was dropped, 0 or more, not {audit!r}")


def remove(model: nn.Module) -> None:
    """Takes the plan off a model, which is then as it was before `apply`."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"remove takes a model, not {type(model).__name__}")
    model = getattr(model, "_orig_mod", model)
    for module in model.modules():
        wrapper = module.__dict__.get("forward")
        if not isinstance(wrapper, Wrapper):
            continue
        if wrapper.previous is not None:
            module.__dict__["forward"] = wrapper.previous
        else:
            del module.__dict__["forward"]


def check_free(model: nn.Module) -> None:
    """Refuses a model that follows a plan already."""
    for path, module in model.named_modules():
        if isinstance(module.__dict__.get("forward"), Wrapper):
            name = f"`{path}`" if path else f"the {type(model).__name__}"
            raise PlanError(f"A plan is already applied to {name}; call rematic.remove(model) first")

