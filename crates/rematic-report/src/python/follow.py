

def apply_plan(model):
    """Makes the model follow the plan."""
    model = getattr(model, "_orig_mod", model)
    modules = dict(model.named_modules())
    if any(isinstance(module.forward, _Planned) for module in modules.values()):
        raise RuntimeError("the model follows a plan already; call apply_plan once")
    planned = [path for _, _, paths in PLAN for path in paths] + [path for _, calls in RUNS for path, _ in calls]
    missing = [path for path in planned if path not in modules]
    if missing:
        raise PlanMismatch(f"the plan is for another model: it checkpoints {missing[0]!r}, and this one has no such module")
    state = _State()
    for path in planned:
        if not isinstance(modules[path].forward, _Planned):
            modules[path].forward = _Planned(path, modules[path], model, state)
    for policy, call, paths in PLAN:
        for path in paths:
            modules[path].forward.policies[call] = policy
    for policy, calls in RUNS:
        first, call = calls[0]
        modules[first].forward.runs[call] = policy, [(modules[path].forward, number) for path, number in calls]
    model.register_forward_pre_hook(functools.partial(_State.begin, state))
    model.register_forward_hook(functools.partial(_State.end, state))


class _State:
    """Where the model is in a forward: how often its modules were called, and the run of calls that is under way."""

    def __init__(self):
        self.calls, self.run = Counter(), None

    def begin(self, *_):
        self.calls.clear()
        self.close()

    def end(self, *_):
        if self.run is not None:
            error = self.run.unfinished()
            self.close()
            raise error

    def close(self):
        run, self.run = self.run, None
        if run is not None:
            run.close()


class _Planned:
    """The forward of a module, checkpointed in the calls that the plan names."""

    def __init__(self, path, module, model, state):
        self.path, self.model, self.state = path or type(model).__name__, model, state
        self.trains = model.training
        self.policies, self.runs = {}, {}
        self.module, self.own = module, vars(module).get("forward")
        self.modules = self.places = None  # what is around it, known when it is first checkpointed

    def __getstate__(self):
        return {**vars(self), "modules": None, "places": None}

    @property
    def __wrapped__(self):
        return self.own or functools.partial(type(self.module).forward, self.module)

    def __call__(self, *args, **kwargs):
        call = self.state.calls[self.path]
        self.state.calls[self.path] += 1
        if self.state.run is not None and not self.state.run.inside:
            return self.follow(call, args, kwargs)
        policy, run = self.policies.get(call), self.runs.get(call)
        evaluates = self.trains and not self.model.training
        if policy is None and run is None or evaluates or not torch.is_grad_enabled():
            return self.__wrapped__(*args, **kwargs)
        if run is not None:
            self.begin(*run, args, kwargs)
            return self.follow(call, args, kwargs)
        if torch.compiler.is_compiling():
            # The compiler recomputes by itself; it asks a policy about every operator that it sees.
            contexts = functools.partial(_compiled_contexts, self.path, policy)
            return checkpoint(self.__wrapped__, *args, use_reentrant=False, context_fn=contexts, **kwargs)
        snapshot = Snapshot(*self.surroundings(), args, kwargs)
        kept = _Kept([snapshot], Weights(self.module.parameters()))
        return checkpoint(
            Call(self.__wrapped__, snapshot, args, kwargs),
            *anchors(args, kwargs),
            use_reentrant=False,
            preserve_rng_state=False,  # the contexts do, for what is drawn again
            context_fn=functools.partial(_contexts, self.path, policy, kept),
        )

    def plain(self, *args, **kwargs):
        return self.__wrapped__(*args, **kwargs)

    def surroundings(self):
        if self.modules is None:
            self.modules = list(self.module.named_modules(prefix=self.path))
            self.places = places_of(module for _, module in self.modules)
        return self.modules, self.places

    def begin(self, policy, calls, args, kwargs):
        """The first of several calls that are checkpointed as one."""
        name = f"{self.path!r} to {calls[-1][0].path!r}"
        if torch.compiler.is_compiling():
            raise PlanMismatch(f"torch.compile does not follow the plan, which checkpoints {name} as one; plan without runs")
        kinds = [(planned.path, base.__name__) for planned, _ in calls for base in type(planned.module).__mro__]
        sharded = [path for path, kind in kinds if kind == "FSDPModule"]
        if sharded:
            raise PlanMismatch(f"{name} are checkpointed as one, but {sharded[0]!r} is sharded by itself; plan without runs")
        parameters = dict.fromkeys(one for planned, _ in calls for one in planned.module.parameters())
        kept = _Kept([], Weights(parameters))
        self.state.run = Run(name, calls, *_contexts(self.path, policy, kept), (args, kwargs))

    def follow(self, call, args, kwargs):
        """One of several calls that are checkpointed as one."""
        run = self.state.run
        try:
            out = run.call(self, call, args, kwargs)
        except BaseException:
            self.state.close()
            raise
        if run.is_over:
            self.state.run = None
        return out


# checkpoint itself detaches what autograd saves, in other places when it recomputes; the others run no kernel.
_LEFT_OUT = ("detach.default", "lift_fresh.default", "_local_scalar_dense.default")


class _Position:
    """Where in its policy a module is."""

    def __init__(self, path, policy):
        self.path, self.total = path, len(policy)
        self.left = [(at, *rest) for at, rest in enumerate(policy) if rest[0] not in _LEFT_OUT][::-1]

    def next(self, func, when):
        """The position of the operator that runs now, and whether its output is saved; None if it is not even made again."""
        at, planned, saved = self.left.pop() if self.left else (self.total, "none", False)
        found = "none" if func is None else str(func).removeprefix("aten.")
        if found != planned:
            raise PlanMismatch(
                f"{self.path!r} does not do what the plan was made for: operator {at} (from 0) is {planned} in the plan, "
                f"but {when} it is {found}; plan again for the model, the inputs, the mode and the device as they are"
            )
        return at, saved


def _is_unplanned(func):
    """The others run no kernel, and are in no plan."""
    return str(func).removeprefix("aten.") in _LEFT_OUT or func.namespace in ("profiler", "prim", "prims")


def _compiled_contexts(path, policy):
    position = _Position(path, policy)

    def decide(_, func, *args, **kwargs):
        saved = not _is_unplanned(func) and position.next(func, "while it is compiled")[1]
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(decide)


def _contexts(path, policy, kept):
    # create_selective_checkpoint_contexts cannot follow every plan: when it recomputes, it does not compare operators,
    # draws other numbers after random operators that are saved, and counts the batch in batch norm's statistics again;
    # and it does not save tensors that the module changes in place, as dropout does on the CPU.
    return _First(path, policy, kept), _Again(path, policy, kept)


class _Kept:
    """What the first run of a module leaves for the second, by the positions of operators."""

    def __init__(self, snapshots, weights):
        # What each call has found, and the one that is under way.
        self.snapshots, self.snapshot = snapshots, snapshots[0] if snapshots else None
        self.weights = weights
        self.values, self.versions = {}, {}  # outputs, and how often they were changed in place
        self.states = {}  # of random number generators before numbers that are drawn again
        self.casts = {}  # of parameters, which autocast remembers, by position
        self.outlines = {}  # shapes of what is not made again
        self.skips = True  # unless a shape cannot stand for it


class _Follower(TorchDispatchMode):
    def __init__(self, path, policy, kept):
        super().__init__()
        self.path, self.policy, self.kept = path, policy, kept
        self.states = {}

    def __enter__(self):
        self.position = _Position(self.path, self.policy)
        # Not to be asked inside operators: there it is off.
        self.autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if _is_unplanned(func) or self.casts_anew(func, args):
            if func is torch.ops.aten._local_scalar_dense.default:
                self.reads(None, args, kwargs)
            return func(*args, **kwargs)
        at, saved = self.position.next(func, self.when)
        return self.follow(at, saved, func, args, kwargs)


class _First(_Follower):
    when = "in forward"

    def casts_anew(self, func, args):
        if self.autocast and _casts_parameter(func, args) and self.position.left:
            self.kept.casts[self.position.left[-1][0]] = args[0]
        return False

    def reads(self, at, args, kwargs):
        if self.kept.snapshot.watched:
            self.kept.snapshot.note_reads(args, kwargs)

    def follow(self, at, saved, func, args, kwargs):
        if func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags:
            generator = _generator(args, kwargs)
            if saved:
                self.states.pop(generator, None)
            elif generator not in self.states:
                self.states[generator] = self.kept.states[at] = _state(generator)
        self.reads(at, args, kwargs)
        out = func(*args, **kwargs)
        changed = _changed(func, args, kwargs)
        if saved is None:
            try:
                self.kept.outlines[at] = outlined(out, changed)
            except Unshaped:
                self.kept.skips = False
        if saved:
            self.kept.values[at] = _map(out, lambda tensor: None if _is_among(tensor, changed) else _alias(tensor))
        elif changed and _storages(changed) & _storages(list(self.kept.values.values())):
            raise PlanMismatch(f"{self.path!r}: the plan recomputes operator {at}, which changes in place what it saves")
        return out

    def __exit__(self, kind, value, traceback):
        super().__exit__(kind, value, traceback)
        if kind is None:
            self.position.next(None, self.when)
            self.kept.versions = {at: _versions(value) for at, value in self.kept.values.items()}
            self.kept.weights.close()
            for snapshot in self.kept.snapshots:
                snapshot.close()

    def begin(self, snapshot):
        """A call of a run begins; between two calls generators may have moved."""
        self.kept.snapshots.append(snapshot)
        self.kept.snapshot = snapshot
        self.states.clear()


class _Again(_Follower):
    when = "when it is recomputed"

    def __enter__(self):
        change = self.kept.weights.change()
        if change is not None:
            raise RuntimeError(f"{self.path!r}: a parameter, {change} after its forward and before its backward")
        return super().__enter__()

    def __exit__(self, kind, value, traceback):
        super().__exit__(kind, value, traceback)
        while self.states:
            _restore(*self.states.popitem())

    def begin(self, snapshot):
        self.kept.snapshot = snapshot

    def repeated(self, run):
        return run()

    def casts_anew(self, func, args):
        """Whether a parameter is cast that the first run found among what autocast remembered."""
        first = self.kept.casts.get(self.position.left[-1][0]) if self.position.left else None
        return self.autocast and _casts_parameter(func, args) and first is not args[0]

    def reads(self, at, args, kwargs):
        wrong = self.kept.snapshot.suspect(args, kwargs) if self.kept.snapshot.suspects else None
        if wrong is not None:
            which = "a number" if at is None else f"operator {at}"
            raise RuntimeError(f"{self.path!r}: {which} is recomputed and reads {wrong}")

    def follow(self, at, saved, func, args, kwargs):
        if saved:
            return self.hand_back(at, func, args, kwargs)
        if saved is None and self.kept.skips:
            return hollowed(self.kept.outlines[at], _changed(func, args, kwargs))
        if at in self.kept.states:
            generator = _generator(args, kwargs)
            self.states.setdefault(generator, _state(generator))
            _restore(generator, self.kept.states[at])
        if func in _BATCH_NORMS and args[5]:
            args = (*args[:3], None, None, *args[5:])  # the statistics have counted this batch
        self.reads(at, args, kwargs)
        return func(*args, **kwargs)

    def hand_back(self, at, func, args, kwargs):
        if at not in self.kept.values:
            raise RuntimeError(f"{self.path!r} is recomputed a second time; call backward once, without retain_graph")
        value = self.kept.values.pop(at)
        if _versions(value) != self.kept.versions[at]:
            raise RuntimeError(f"{self.path!r}: the output of operator {at} is saved, but was changed in place since")
        if not func._schema.returns:
            return None
        changed = iter(_changed(func, args, kwargs))
        return _map(value, lambda tensor: next(changed, None) if tensor is None else tensor)


_BATCH_NORMS = [
    getattr(torch.ops.aten, name).default for name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
]


def _casts_parameter(func, args):
    return func is torch.ops.aten._to_copy.default and isinstance(args[0], nn.Parameter)


def _generator(args, kwargs):
    """Where an operator draws its numbers from."""
    device = next((value.device for value in args if isinstance(value, Tensor)), kwargs.get("device"))
    device = torch.device(device or "cpu")
    if device.type == "cpu" or kwargs.get("generator") is not None:
        return kwargs.get("generator") or torch.default_generator
    module = torch.get_device_module(device)
    return module.default_generators[module.current_device() if device.index is None else device.index]


def _state(generator):
    return bytes(generator.get_state().tolist())  # as a tensor it would be memory of the step


def _restore(generator, state):
    generator.set_state(torch.tensor(list(state), dtype=torch.uint8))


def _changed(func, args, kwargs):
    """The tensors that an operator changes in place."""
    changed = []
    for at, argument in enumerate(func._schema.arguments if func._schema.is_mutable else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            _map(args[at] if at < len(args) else kwargs.get(argument.name), changed.append)
    return [tensor for tensor in changed if tensor is not None]


def _alias(tensor):
    # Without a place in autograd's graph, but with the count of changes in place.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return tensor.detach() if tensor is not None else None


def _is_among(tensor, tensors):
    return any(tensor is other for other in tensors)


def _map(value, function):
    if isinstance(value, (tuple, list)):
        return type(value)([_map(item, function) for item in value])
    return function(value) if value is None or isinstance(value, Tensor) else value


def _versions(value):
    found = []
    _map(value, lambda tensor: tensor is None or found.append(tensor._version))
    return found


def _storages(value):
    found = set()
    _map(value, lambda tensor: tensor is None or found.add(tensor.untyped_storage()._cdata))
    return found
