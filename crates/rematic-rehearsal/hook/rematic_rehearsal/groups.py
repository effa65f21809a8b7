"""Process groups of ranks that are not there: PyTorch's own fake ones."""

import os
import sys

from rematic_rehearsal import assumptions


def fake(torch):
    """Every process group becomes a fake one, whatever backend the script asks for."""
    if not torch.distributed.is_available():
        return
    import torch.distributed.distributed_c10d as c10d

    real_init, real_new = c10d.init_process_group, c10d._new_group_with_tag

    def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, *_rest, **_more):
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if world_size < 1:
            if "WORLD_SIZE" not in os.environ:
                raise ValueError("the script starts a process group; say of how many: rematic rehearse --gpus N -- …")
            world_size = int(os.environ["WORLD_SIZE"])
        rank = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
        return real_init("fake", rank=rank, world_size=world_size, store=FakeStore())

    def new_group(ranks=None, timeout=None, backend=None, *rest, **more):
        return real_new(ranks, timeout, "fake" if backend is not None else None, *rest, **more)

    _replace(real_init, init_process_group)
    c10d._new_group_with_tag = new_group
    _objects(c10d)
    _data_parallel(torch)


def _data_parallel(torch):
    """DDP waits for the tensors of an all-reduce, which fake groups do not hand back: its buckets stay as they are."""
    kind = torch.nn.parallel.DistributedDataParallel
    built, registered = kind.__init__, kind.register_comm_hook

    def init(self, *arguments, **keywords):
        from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

        built(self, *arguments, **keywords)
        registered(self, None, noop_hook)

    def register_comm_hook(self, state, hook):
        assumptions.assume(f"the communication hook {getattr(hook, '__name__', hook)} of DDP takes no memory", line=False)

    kind.__init__, kind.register_comm_hook = init, register_comm_hook


def _objects(c10d):
    """Objects of other ranks are taken to equal this one's."""

    def all_gather_object(object_list, obj, group=None):
        object_list[:] = [obj] * len(object_list)

    def gather_object(obj, object_gather_list=None, *_rest, **_more):
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def broadcast_object_list(object_list, *_rest, **_more):
        return None

    for own in (all_gather_object, gather_object, broadcast_object_list):
        _replace(getattr(c10d, own.__name__), own)


def _replace(old, new):
    """Puts `new` wherever PyTorch has `old` by name."""
    for name, module in list(sys.modules.items()):
        if name == "torch" or name.startswith("torch."):
            for attribute, value in list(vars(module).items()):
                if value is old:
                    setattr(module, attribute, new)
