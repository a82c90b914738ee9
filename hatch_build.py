"""What a wheel holds otherwise than the repository: the playground's module, without what only people read."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import rjsmin
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULE = "tailrace/server/http/playground/tailrace-chat.js"


def shipped(source: str) -> str:
    """A module of JavaScript without comments and spaces, under the first line of what it says of itself."""
    _, about, _ = source.split("\n", 2)
    return f"// {about.strip(' *')}\n{rjsmin.jsmin(source)}\n"


class CustomBuildHook(BuildHookInterface[Any]):
    """Puts the module into the wheel without comments and spaces; an editable installation serves it as it is."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the file that stands in the module's place."""
        if version == "editable":
            return
        self._folder = TemporaryDirectory()
        written = Path(self._folder.name) / "tailrace-chat.js"
        source = (Path(self.root) / "server" / MODULE).read_text(encoding="utf-8")
        written.write_text(shipped(source), encoding="utf-8")
        build_data["force_include"][str(written)] = MODULE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Take the file away again."""
        if version != "editable":
            self._folder.cleanup()
