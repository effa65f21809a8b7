"""Started by Python itself before a rehearsed script: watches it, and starts the `sitecustomize` that was there before."""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _others():
    return [place for place in sys.path if os.path.abspath(place or ".") != _HERE]


def _chain():
    """Runs the environment's own `sitecustomize`, which this one hides."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others())
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if "REMATIC_REHEARSAL_REPORTS" in os.environ:
    import rematic_rehearsal

    rematic_rehearsal.watch()
sys.path[:] = _others()
_chain()
