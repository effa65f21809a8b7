"""The command `rematic`."""

import signal
import sys

from rematic import _core


def main() -> int:
    # Ctrl-C ends the command at once, as it ends any other program; Python would only note it until Rust returns.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.main(sys.argv)
