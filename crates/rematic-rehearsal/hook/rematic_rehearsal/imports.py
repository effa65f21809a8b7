"""Something to do after a module is imported, whoever imports it."""

import importlib.machinery
import sys

_waiting = {}


def after(name, action):
    """Calls `action(module)` after the first import of `name`."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _waiting[name] = action


class _Finder:
    """Finds modules as Python does, and wraps how those that are waited for are run."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        # A script may ask whether there is such a module before it imports it.
        if name not in _waiting:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            action = _waiting.pop(name, None)
            if action is not None:
                action(module)

        spec.loader.exec_module = exec_module
        return spec
