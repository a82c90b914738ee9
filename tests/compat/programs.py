"""The programs of the matrix: one folder each, with its versions, its lock file and its client.

A foreign agent has ``server.py`` or ``server.mjs`` in place of the client (`compat.agents`). The folder of a client holds ``program.toml`` and either a uv project with ``client.py`` or an npm project with ``client.mjs``. The client
reads commands as the clients of `e2e.clients` do and offers these, each for one conversation of its own making:

- ``stream`` (``text``): sends a message; an event ``{"message": {"text": …}}`` for each change, with the text so far.
- ``ask`` (``text``): sends a message without streaming; returns the text.
- ``call`` (``text``): sends a message that leads to a tool call, returns a result for it, and returns the text after it.
- ``cancel``: stops the running response.
- ``history``: returns what the program itself stores, as ``{"role", "text"}`` with the roles ``user`` and ``agent``.
- ``reload``: drops what is in memory and restores the conversation from the program's own storage.
"""

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.clients.kinds import Kind
from e2e.ui_streams.node import NODE

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Program:
    """A program of the matrix.

    Attributes:
        name: The name of its folder.
        title: Its name in the table.
        package: The package that is tested.
        version: The version of the package that is pinned.
        section: The heading of its table.
        configuration: What its user has to set.
        settings: Settings of the server that it is tested against.
        path: Of an agent: the path under which its card is.
        proxied: Of an agent: its card can name another address than the one that it listens on.
        background: It has background responses (`compat.background_runs`).
        instructs: It adds instructions and tools of its own to the requests to the model.
        ends: Of an agent: the state in which its tasks end a response.
        absent: Expectations that it has no function for, each with the reason.
        fails: Expectations that are known to fail, each with the reason.
    """

    name: str
    title: str
    package: str
    version: str
    section: str
    configuration: str
    settings: Mapping[str, str]
    path: str
    proxied: bool
    background: bool
    instructs: bool
    ends: str
    absent: Mapping[str, str]
    fails: Mapping[str, str]

    @property
    def folder(self) -> Path:
        return HERE / self.name

    @property
    def is_python(self) -> bool:
        return (self.folder / "pyproject.toml").exists()

    @property
    def is_agent(self) -> bool:
        """Whether it is a foreign agent (`compat.agents`) instead of a client."""
        return any((self.folder / name).exists() for name in ("server.py", "server.mjs"))

    @property
    def environment(self) -> Path:
        """The folder that the installed packages are in."""
        return self.folder / (".venv" if self.is_python else "node_modules")

    @property
    def kind(self) -> Kind:
        """The program as `e2e.clients.programs.running_client` starts it."""
        if self.is_python:
            python = str(self.environment / "bin/python")
            return Kind(self.name, (python, "-m", f"compat.{self.name}.client"), "", "")
        return Kind(self.name, (NODE, str(self.folder / "client.mjs")), "", "")

    def install(self, uv: str) -> None:
        """Install what the lock file names."""
        if self.is_python:
            subprocess.run([uv, "sync", "--frozen", "--quiet", "--project", str(self.folder)], check=True)
        else:
            arguments = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
            subprocess.run(self._npm(*arguments), check=True)

    def list_newer(self, uv: str) -> str:
        """Return the registry's newer versions of the packages that the program pins; empty if there are none."""
        if self.is_python:
            tree = [
                uv,
                "tree",
                "--frozen",
                "--quiet",
                "--outdated",
                "--depth",
                "1",
                "--project",
                str(self.folder),
            ]
            lines = subprocess.run(tree, check=True, capture_output=True, text=True).stdout.splitlines()
            return "\n".join(line for line in lines if "(latest:" in line)
        outdated = subprocess.run(
            self._npm("outdated", "--json"), check=False, capture_output=True, text=True
        )
        versions = json.loads(outdated.stdout).items()
        return "\n".join(
            f"{name} v{each['wanted']} (latest: v{each['latest']})"
            for name, each in versions
            if each["wanted"] != each["latest"]
        )

    def _npm(self, *arguments: str) -> Sequence[str]:
        runner = str(HERE.parent / "e2e/ui_streams/node.py")
        return [sys.executable, runner, "npm", *arguments, "--prefix", str(self.folder)]


def read_program(folder: Path) -> Program:
    """Return the program of a folder."""
    fields = tomllib.loads((folder / "program.toml").read_text())
    return Program(
        name=folder.name,
        title=fields["title"],
        package=fields["package"],
        version=_pinned(folder, fields["package"]),
        section=fields["section"],
        configuration=fields.get("configuration", "none"),
        settings=fields.get("settings", {}),
        path=fields.get("path", ""),
        proxied=fields.get("proxied", True),
        background=fields.get("background", False),
        instructs=fields.get("instructs", False),
        ends=fields.get("ends", "COMPLETED"),
        absent=fields.get("absent", {}),
        fails=fields.get("fails", {}),
    )


def read_programs() -> list[Program]:
    """Return all programs, by the name of their folder."""
    return [read_program(path.parent) for path in sorted(HERE.glob("*/program.toml"))]


def _pinned(folder: Path, package: str) -> str:
    if (folder / "pyproject.toml").exists():
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for dependency in project["dependencies"]:
            name, _, version = dependency.partition("==")
            if name.partition("[")[0] == package:
                return version
        raise ValueError(f"{folder.name}/pyproject.toml does not pin {package}")
    return json.loads((folder / "package.json").read_text())["dependencies"][package]
