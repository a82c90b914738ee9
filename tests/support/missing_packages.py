"""Python without an optional package."""

import subprocess
import sys


def run_without(package: str, code: str) -> str:
    """Run code without a package, and return its standard output."""
    script = f"import sys\nsys.modules[{package!r}] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout
