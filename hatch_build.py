"""What a wheel holds otherwise than the repository: the playground's module, without what only people read."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import rjsmin
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULE = "tailrace/server/playground/tailrace-chat.js"


class CustomBuildHook(BuildHookInterface[Any]):
    """Puts the module into the wheel without comments and spaces; an editable installation serves it as it is."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the file that stands in the module's place."""
        if version == "editable":
            return
        self._folder = TemporaryDirectory()
        written = Path(self._folder.name) / "tailrace-chat.js"
        source = (Path(self.root) / "server" / MODULE).read_text(encoding="utf-8")
        head, _, _ = source.partition("*/")
        about = head.splitlines()[1].strip(" *")
        written.write_text(f"// {about}\n{rjsmin.jsmin(source)}\n", encoding="utf-8")
        build_data["force_include"][str(written)] = MODULE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Take the file away again."""
        if version != "editable":
            self._folder.cleanup()
