"""`torchrun` and `accelerate launch` start a process per GPU; a rehearsal runs one rank, in this process."""

import os
import runpy
import sys


def torchrun(run_module):
    """Called after `torch.distributed.run` is imported."""

    def run(args):
        if "WORLD_SIZE" not in os.environ:
            local = run_module.determine_local_world_size(args.nproc_per_node)
            nodes = int(str(args.nnodes).split(":")[-1])
            _environment(local * nodes, local)
        script, arguments = args.training_script, list(args.training_script_args)
        sys.argv = [script, *arguments]
        if getattr(args, "module", False):
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
            runpy.run_path(script, run_name="__main__")

    run_module.run = run


def _environment(world, local):
    rank = int(os.environ.get("REMATIC_REHEARSAL_RANK", "0"))
    values = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank % local, "LOCAL_WORLD_SIZE": local,
              "GROUP_RANK": rank // local, "MASTER_ADDR": "localhost", "MASTER_PORT": 29500}
    os.environ.update({name: str(value) for name, value in values.items()})
