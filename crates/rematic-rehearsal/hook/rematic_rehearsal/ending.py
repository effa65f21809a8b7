"""How the script ends: by itself, by an error, or out of memory."""

import atexit
import os
import sys
import threading
import traceback

from rematic_rehearsal import cudnn, imports, places, reads, report, steps


def watch():
    """Called before the script."""
    report.write(pid=os.getpid(), parent=os.getppid())
    before = sys.excepthook

    def failed(kind, error, trace):
        _uncaught(kind, error, trace)
        before(kind, error, trace)

    sys.excepthook = failed
    _watch_threads()
    imports.after("multiprocessing.process", _watch_children)
    owner = os.getpid()

    def ended():
        # A forked worker of a data loader is not the script.
        if os.getpid() == owner:
            report.write(steps=steps.done() if not report.said("finished") else report.said("steps"), ended=True)
            try:
                places.finish()
            finally:
                reads.finish()
                cudnn.finish()

    atexit.register(ended)


def _uncaught(kind, error, trace):
    line = traceback.format_exception_only(kind, error)[-1].strip()
    report.write(error={"kind": kind.__name__, "text": line, "line": places.of_traceback(trace)})


def _watch_threads():
    """A thread that runs out of memory ends without the script: that is not a script that went on."""
    before = threading.excepthook

    def failed(arguments):
        if arguments.exc_type.__name__ == "OutOfMemoryError":
            _uncaught(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
        before(arguments)

    threading.excepthook = failed


def _watch_children(process):
    """Processes of `multiprocessing` catch every error themselves, and end with a code."""
    before = process.BaseProcess._bootstrap

    def bootstrap(self, *arguments, **keywords):
        code = before(self, *arguments, **keywords)
        # What a forked one inherits was said by its parent.
        own = report.said("pid") == os.getpid()
        if own and code and not report.said("finished") and not report.said("error"):
            report.write(error={"kind": "", "text": f"a process ended with exit code {code}", "line": None})
        return code

    process.BaseProcess._bootstrap = bootstrap
