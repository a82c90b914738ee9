"""The small programs of the matrix of third-party programs (`compat`): at most 40 MB each, and no official SDK of A2A."""

from pathlib import Path

import pytest

from compat.programs import HERE, read_program
from compat.running import find_undeclared, find_uv, run_program

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("name", ["ai_sdk_openai", "deep_chat_a2a", "openai_node", "openai_python"])
async def test_each_expectation_has_the_declared_result(name: str, tmp_path: Path) -> None:
    program = read_program(HERE / name)
    program.install(find_uv())
    assert find_undeclared(program, await run_program(program, tmp_path)) == {}
