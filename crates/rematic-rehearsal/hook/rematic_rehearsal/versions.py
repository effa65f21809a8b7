"""Which builds of PyTorch can be rehearsed: the names and layouts of the runtime are those of CUDA 13."""

import os

from rematic_rehearsal import report

RELEASES = ("2.13", "2.14", "2.15")
CUDA = "13."


def check(torch):
    """Ends the script if its PyTorch cannot be rehearsed."""
    version, cuda = str(torch.__version__), torch.version.cuda
    release = ".".join(version.split(".")[:2])
    if cuda is None or not cuda.startswith(CUDA) or release not in RELEASES:
        report.write(refused={"torch": version, "cuda": cuda, "python": os.sys.executable})
        raise SystemExit("rehearsal: this PyTorch cannot be rehearsed")
