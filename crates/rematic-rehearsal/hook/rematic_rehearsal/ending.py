"""How the script ends: by itself, by an error, or out of memory."""

import atexit
import os
import sys
import traceback

from rematic_rehearsal import places, reads, report, steps


def watch():
    """Called before the script."""
    report.write(pid=os.getpid(), parent=os.getppid())
    before = sys.excepthook

    def failed(kind, error, trace):
        line = traceback.format_exception_only(kind, error)[-1].strip()
        report.write(error={"kind": kind.__name__, "text": line, "line": places.of_traceback(trace)})
        before(kind, error, trace)

    sys.excepthook = failed
    owner = os.getpid()

    def ended():
        # A forked worker of a data loader is not the script.
        if os.getpid() == owner:
            report.write(steps=steps.done() if not report.said("finished") else report.said("steps"), ended=True)
            places.finish()
            reads.finish()

    atexit.register(ended)
