"""Python without an optional package."""

import subprocess
import sys


def run_without(package: str, code: str) -> str:
    """Run code where a package is not installed; it must write nothing to standard error. Its standard output."""
    script = f"import sys\nsys.modules[{package!r}] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout
