"""Where a plan is put onto a model, and taken off.

A module is wrapped by a `forward` of its own, in the instance: its class, parameters, hooks and place in the model stay
as they are.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rematic._core import Plan, PlanError
from rematic._loss.head import Chunked, Head, put
from rematic._model.cache import caching_configs, without_cache
from rematic._model.follower import Follower, check_free
from rematic._model.meshes import mesh_of
from rematic._model.signature import Signature

from .audit import Audit
from .call import Call, anchors
from .choice import Choice
from .compiled import compiled_contexts
from .errors import Mismatch
from .forwards import Forwards
from .host import Movements
from .kept import Kept
from .modes import Again, Forward
from .places import Places, places_of
from .policy import Policy
from .promise import Promise
from .runs import Run
from .snapshot import Snapshot
from .variants import Variants
from .weights import Weights

# How many steps are audited unless another number is given.
AUDITED_STEPS = 3

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_count_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
# What compiles the frames that run now; None or False if nothing does.
_compiler: Callable[[], Any] = torch._C._dynamo.eval_frame.get_eval_frame_callback


class Wrapper(Follower):
    """Stands in for the forward of one module."""

    def __init__(self, module: nn.Module, root: Root, path: str) -> None:
        self.module = module
        # Where it is in the model, for messages.
        self.path = path
        self.root = root
        # A forward that somebody else has put into the instance.
        self.previous: Callable[..., Any] | None = module.__dict__.get("forward")
        # By the number of the call, and by the variant.
        self.policies: dict[int, dict[int, Policy]] = {}
        self.calls = 0
        # Where the module is, if the step calls it by itself and not from another; empty for the model.
        self.entry: str | None = None
        # What a call finds around it, known when the first is checkpointed.
        self._modules: list[tuple[str, nn.Module]] | None = None
        self._is_sharded_inside = False
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
        if self.entry is not None and not self.root.running:
            return self.root.run(self, self.entry, args, kwargs)
        return self.run(args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call, checkpointed if the plan says so."""
        call = self.calls
        self.calls = call + 1
        if self.root.open is not None and not self.root.open.inside:
            return self._in_run(self.root.open, call, args, kwargs)
        planned = self.policies.get(call)
        if planned is None or not torch.is_grad_enabled() or self.root.rests() or self.root.inside:
            return self.plain(*args, **kwargs)
        if not self.root.running:
            module = next(iter(planned.values())).module
            raise PlanError(
                f"`{module}` was called by itself, not by the model that the plan was applied to, so which of its "
                "calls this is cannot be told; call the model, capture the step as it runs with rematic.capture_step (of a "
                "Lightning module, one that calls its training_step), or apply a plan to the module that training calls"
            )
        if self.root.movements is not None and (torch.compiler.is_compiling() or callable(_compiler())):
            raise PlanError(
                "The plan moves outputs to the host and back, which a compiled model cannot; plan without host_memory, or "
                "run the model without torch.compile"
            )
        if torch.compiler.is_compiling():
            policy = next(iter(planned.values()))
            if policy.then:
                raise _uncompiled(policy)
            return checkpoint(
                self.plain,
                *args,
                use_reentrant=False,
                context_fn=functools.partial(compiled_contexts, policy),
                **kwargs,
            )
        chosen = self.root.variants.choice(planned)
        if chosen is None:
            return self.plain(*args, **kwargs)
        if isinstance(chosen, Policy) and chosen.then:
            self.root.open = self._begin_run(chosen, args, kwargs)
            return self._in_run(self.root.open, call, args, kwargs)
        modes = _count_modes()
        self.root.inside = True
        try:
            return self._checkpointed(chosen, args, kwargs)
        except Exception as error:
            if _count_modes() > modes:
                # PyTorch 2.6 leaves what checkpointing has entered to the end of the frames that the error holds.
                traceback.clear_frames(error.__traceback__)
            if isinstance(error, Mismatch):
                self._explain(error)
            raise
        finally:
            self.root.inside = False

    def _checkpointed(self, policy: Policy | Choice, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first = policy if isinstance(policy, Policy) else policy.first
        modules, places = self.surroundings()
        snapshot = Snapshot(modules, places, args, kwargs)
        audit = Audit() if self.root.audits else None
        kept = Kept(snapshot, Weights(self.module.parameters()), first, audit, self.root.movements, self.root.told)
        kept.is_sharded_inside = self._is_sharded_inside
        again = Again(kept)
        return checkpoint(
            Call(self.plain, snapshot, args, kwargs, again),
            *anchors(args, kwargs),
            use_reentrant=False,
            preserve_rng_state=False,  # the modes do, for what is drawn again
            context_fn=lambda: (Forward(policy, kept), again),
        )

    def surroundings(self) -> tuple[list[tuple[str, nn.Module]], Places]:
        """What a call finds around it: the modules, and the places that their code reads."""
        if self._modules is None:
            self._modules = list(self.module.named_modules(prefix=self.path))
            self._places = places_of(module for _, module in self._modules)
            self._is_sharded_inside = self._sharded_inside() is not None
        return self._modules, self._places

    def _begin_run(self, policy: Policy, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
        """The first call of a run that is checkpointed as one."""
        # Where the compiler gives up a frame, what is called from there is compiled all the same.
        if torch.compiler.is_compiling() or callable(_compiler()):
            raise _uncompiled(policy)
        calls = [(self, policy.call), *self.root.following(policy)]
        for wrapper, _ in calls:
            if _is_sharded(wrapper.module):
                raise PlanError(
                    f"The plan checkpoints {policy.name} as one, but `{wrapper.path}` is sharded by itself (FSDP2) and gathers its "
                    "parameters where it is called, which does not happen again when they are recomputed; plan without such runs "
                    "(runs=False)"
                )
        unique = dict.fromkeys(parameter for wrapper, _ in calls for parameter in wrapper.module.parameters())
        kept = Kept(None, Weights(unique), policy, Audit() if self.root.audits else None, told=self.root.told)
        kept.is_sharded_inside = any(wrapper._sharded_inside() is not None for wrapper, _ in calls)
        return Run(policy.name, calls, Forward(policy, kept), Again(kept), (args, kwargs))

    def _in_run(self, run: Run, call: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a run that is checkpointed as one."""
        self.root.inside = True
        try:
            out = run.call(self, call, args, kwargs)
            if run.is_over:
                self.root.open = None
            return out
        except BaseException as error:
            self.root.close()
            if isinstance(error, Mismatch):
                error.add(f"It is checkpointed as one with the calls that follow: {run.name}.")
                self._explain(error)
            raise
        finally:
            self.root.inside = False

    def _explain(self, mismatch: Mismatch) -> None:
        """Adds why other operators run, if it can be seen."""
        never = f'never="{mismatch.module}"'
        path = self._sharded_inside()
        if path is not None:
            mismatch.add(
                f"Inside it `{path}` is sharded by itself and gathers its parameters in the midst; plan without the "
                f"modules around it ({never}), or shard `{mismatch.module}` as one."
            )

    def _sharded_inside(self) -> str | None:
        """A module inside it that is sharded by itself."""
        for path, module in self.module.named_modules():
            if path and _is_sharded(module):
                return path
        return None


def _uncompiled(policy: Policy) -> PlanError:
    return PlanError(
        f"The plan checkpoints {policy.name} as one, which torch.compile does not follow; plan without such runs (runs=False), or train "
        "without torch.compile"
    )


def _is_sharded(module: nn.Module) -> bool:
    """Whether FSDP2 shards a module by itself."""
    return any(base.__name__ == "FSDPModule" for base in type(module).__mro__)


class Root:
    """The model that a plan is applied to, with its wrapped modules."""

    def __init__(self, model: nn.Module, plan: Plan, audit: int) -> None:
        self.model = model
        # How many steps are still audited.
        self.audits = audit
        self.promise = Promise(model, plan) if audit else None
        # A model that evaluates is not checkpointed, unless its plan was put onto it in that state.
        self.trains = model.training
        self.running = False
        # Whether a checkpointed module runs. Those inside it are those of other variants.
        self.inside = False
        # The run of calls that is under way.
        self.open: Run | None = None
        # The modules of which was said that they run again in full.
        self.told: set[str] = set()
        self.forwards = Forwards(model, plan)
        self.variants = Variants(plan)
        # What goes to the host and comes back, if anything does.
        movements = Movements(plan)
        self.movements = movements if movements.count else None
        self.wrapper = Wrapper(model, self, type(model).__name__)
        self.wrapper.entry = ""
        self.wrappers = [self.wrapper]
        self.caching = caching_configs(model)

    def wrapper_at(self, path: str) -> Wrapper | None:
        """The wrapper of a module, made if there is none yet. None if there is no such module."""
        module = self.model
        for name in filter(None, path.split(".")):
            child = module._modules.get(name)
            if child is None:
                return None
            module = child
        for wrapper in self.wrappers:
            if wrapper.module is module:
                return wrapper
        self.wrappers.append(Wrapper(module, self, ".".join(filter(None, (self.wrapper.path, path)))))
        return self.wrappers[-1]

    def following(self, policy: Policy) -> list[tuple[Wrapper, int]]:
        """The further calls of a run."""
        found = [(self.wrapper_at(path.partition(".")[2]), call) for path, call in policy.then]
        return [(wrapper, call) for wrapper, call in found if wrapper is not None]

    def close(self) -> None:
        """What is under way ends in the middle."""
        if self.open is not None:
            run, self.open = self.open, None
            run.close()

    def rests(self) -> bool:
        """Whether the model evaluates."""
        return self.trains and not self.model.training

    def run(self, wrapper: Wrapper, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One forward of the model, or of a part that the step calls by itself. Calls are counted from the first forward of a
        step to its last."""
        trains = torch.is_grad_enabled() and not self.rests()
        counts = self.forwards.has(trains, path)
        if self.forwards.next == 0:
            self._count_anew()
        promise = self.promise if trains and self.forwards.next == 0 else None
        before = [wrapper.calls for wrapper in self.wrappers]
        self.running = True
        forward = self.forwards.next
        try:
            with (
                without_cache(self.caching if trains and "use_cache" not in kwargs else ()),
                self._telling(wrapper, args, kwargs),
                promise.watching((args, kwargs)) if promise is not None else contextlib.nullcontext(),
            ):
                out = wrapper.run(args, kwargs)
                if self.open is not None:
                    raise self.open.unfinished()
            if not counts:
                for counted, calls in zip(self.wrappers, before, strict=True):
                    counted.calls = calls
            elif self.forwards.advance():
                for counted in self.wrappers:
                    self._check_calls(counted)
                self._count_anew()
                self.audits = max(0, self.audits - trains)
        except BaseException as error:
            self.close()
            self.forwards.restart()
            self._count_anew()
            if isinstance(error, Mismatch) and not torch.compiler.is_compiling():
                error.add(self.variants.unlike(wrapper.module, forward, args, kwargs))
            raise
        finally:
            self.running = False
        return out

    def _telling(
        self, wrapper: Wrapper, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> contextlib.AbstractContextManager[None]:
        """While it is entered, what runs tells which variant it is."""
        if not self.variants.several or torch.compiler.is_compiling():
            return contextlib.nullcontext()
        given = Signature.of(wrapper.module, args, kwargs)
        return self.variants.telling(self.forwards.next, given, opens=wrapper.entry == self.forwards.paths[0])

    def _count_anew(self) -> None:
        for wrapper in self.wrappers:
            wrapper.calls = 0

    def _check_calls(self, wrapper: Wrapper) -> None:
        # A module that is skipped (stochastic depth) takes no memory.
        for call, planned in wrapper.policies.items():
            policies = [planned.get(variant) for variant in self.variants.possible]
            policy = policies[0]
            if policy is not None and all(policies) and 0 < wrapper.calls <= call:
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

    Of a plan whose loss is computed in chunks, the layer that it names returns logits that are never there as a whole: cross_entropy
    of them is computed in parts, and whatever else reads them raises an error. Without gradients, and when the model evaluates, they
    are there.

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
    _check_layout(model, plan)
    head = None if plan.loss is None else put(model, Chunked(*plan.loss))
    try:
        root, has_regions = _planned(model, plan, audit)
    except BaseException:
        if head is not None:
            head.take_off()
        raise
    if has_regions or head is not None:
        for wrapper in root.wrappers:
            wrapper.module.__dict__["forward"] = wrapper


def _planned(model: nn.Module, plan: Plan, audit: int) -> tuple[Root, bool]:
    """The wrappers that a plan needs, not yet put onto the model, and whether it checkpoints anything."""
    root = Root(model, plan, audit)
    regions = [
        (at, number, region)
        for at, variant in enumerate(plan.variants)
        for number, region in enumerate(variant.regions)
    ]
    for variant, number, region in regions:
        # Paths begin with the class of the model, which sharding changes.
        wrapper = root.wrapper_at(region.module.partition(".")[2])
        if wrapper is None:
            raise PlanError(
                f"The plan is for another model, {plan.source}: it checkpoints `{region.module}`, and this "
                f"{type(model).__name__} has no such module; capture and plan this one"
            )
        planned = wrapper.policies.setdefault(region.call, {})
        policy = planned[variant] = Policy.of(region, number)
        missing = [path for path, _ in policy.then if root.wrapper_at(path.partition(".")[2]) is None]
        if missing:
            raise PlanError(
                f"The plan is for another model, {plan.source}: it checkpoints `{missing[0]}`, and this "
                f"{type(model).__name__} has no such module; capture and plan this one"
            )
        next(iter(planned.values())).others += [policy] if len(planned) > 1 else []
    for path in root.forwards.paths:
        entered = root.wrapper_at(path)
        if entered is None:
            raise PlanError(
                f"The plan is for another model, {plan.source}: its step calls `{path}`, and this {type(model).__name__} has no "
                "such module; capture and plan this one"
            )
        entered.entry = path
    return root, bool(regions)


def _check_layout(model: nn.Module, plan: Plan) -> None:
    """Refuses a plan for another number of GPUs than a model is spread over."""
    mesh = mesh_of(model)
    # A plan for one device, or a model that is yet to be spread along other axes of its mesh, says nothing of it.
    if mesh is not None and plan.world_size not in (1, mesh.size(), mesh._get_root_mesh().size()):
        raise PlanError(
            f"The plan is for one of {plan.world_size} GPUs, and this model is spread over {mesh.size()} of them; capture and plan it "
            "as it is spread"
        )


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
        if isinstance(wrapper, Wrapper):
            if wrapper.previous is not None:
                module.__dict__["forward"] = wrapper.previous
            else:
                del module.__dict__["forward"]
        head = module.__dict__.get("forward")
        if isinstance(head, Head):
            head.take_off()
