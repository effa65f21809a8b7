"""The command `rematic`."""

import os
import signal
import sys

from rematic import _core


def main() -> int:
    # Ctrl-C ends the command at once, as it ends any other program; Python would only note it until Rust returns.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Where a model is captured, this Python does it.
    os.environ.setdefault("REMATIC_PYTHON", sys.executable)
    return _core.main(sys.argv)
