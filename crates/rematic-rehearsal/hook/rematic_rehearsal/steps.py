"""Counts the optimizers' steps, and ends the script after enough of them."""

import os
import weakref

from rematic_rehearsal import report

# Steps of each optimizer. There may be several: one per network, or one per parameter.
_counts = weakref.WeakKeyDictionary()


class Finished(SystemExit):
    """The rehearsal is over. `except Exception` does not catch it, and `finally` and `atexit` run."""


def done():
    """Steps of the optimizer that made most."""
    return max(_counts.values(), default=0)


def count(torch):
    """Counts from now on."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    wanted = int(os.environ.get("REMATIC_REHEARSAL_STEPS", "3"))

    def stepped(optimizer, _arguments, _keywords):
        _counts[optimizer] = _counts.get(optimizer, 0) + 1
        all_have = min(_counts.values()) >= wanted
        # One more, where an optimizer is used more rarely than the others.
        if all_have or _counts[optimizer] > wanted:
            report.write(steps=min(done(), wanted), finished=True)
            raise Finished(0)
        report.write(steps=done())

    register_optimizer_step_post_hook(stepped)
