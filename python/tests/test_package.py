"""What comes with the wheel."""

import pathlib
import subprocess
import sys
from importlib import metadata

import rematic


def python(code, *arguments):
    run = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_importing_does_not_need_torch():
    """Nothing but capturing and applying does."""
    python(
        "import sys; sys.modules['torch'] = None\n"
        "import rematic, rematic.compat\n"
        "rematic.plan(rematic.Trace.model('seed-transformer', layers=2), '2GiB')\n"
    )


def test_everything_public_is_there():
    assert (pathlib.Path(rematic.__file__).parent / "py.typed").exists()
    for name in rematic.__all__:
        assert hasattr(rematic, name), name


def test_the_version_is_the_packages():
    assert rematic.__version__ == metadata.version("rematic")


def command(*arguments):
    code = "import sys; from rematic._command import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_the_command_is_the_command_line():
    said = command("plan", "seed-transformer", "--budget", "1.6GiB")
    assert said.returncode == 0
    assert said.stdout.startswith("seed-transformer · fp32 · Adam · 8 × 1024 · H100\nFits with a plan: peak 2.50 GiB -> 1.60 GiB")
    assert command("plan", "seed-transformer", "--budget", "1MiB").returncode == 3
    wrong = command("stats", "no-such-model")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: ")
    assert command("--version").stdout.split()[1] == rematic.__version__
    assert command("stats").returncode == 2


def test_the_command_is_installed():
    distribution = metadata.distribution("rematic")
    entries = [entry for entry in distribution.entry_points if entry.name == "rematic"]
    assert [entry.value for entry in entries] == ["rematic._command:main"]
    # `pip install --target` moves scripts without writing it down.
    listed = [distribution.locate_file(file) for file in distribution.files if file.name == "rematic"]
    beside = pathlib.Path(rematic.__file__).parents[1] / "bin" / "rematic"
    script = next(script for script in [*listed, beside] if pathlib.Path(script).is_file())
    run = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert run.stdout == f"rematic {rematic.__version__}\n"
