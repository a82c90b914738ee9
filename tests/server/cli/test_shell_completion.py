"""Shell completion as bash requests it, with the generated script."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.wrappers.providers import providers

pytestmark = pytest.mark.timeout(240)  # each completion starts a shell and an interpreter

SCRIPT = """
eval "$(_TAILRACE_COMPLETE=source_bash tailrace)"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_tailrace_completion tailrace
printf '%s\\n' "${COMPREPLY[@]}"
"""
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def completed(*words: str) -> list[str]:
    done = subprocess.run(
        ["bash", "-c", SCRIPT, "bash", "tailrace", *words],
        env={**os.environ, "PATH": PATH},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_a_provider_by_its_names() -> None:
    assert completed("convert", "--provider", "") == [provider.name for provider in providers()]
    assert completed("convert", "--provider", "anth") == ["anthropic", "anthropic-messages"]
    assert completed("convert", "--provider", "cla") == ["claude"]
    assert completed("convert", "--provider", "nobody") == []


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_a_model_by_its_provider(command: str) -> None:
    assert completed(command, "--model", "mis") == ["mistral:", "mistralai:"]
    # bash splits words at colons
    assert completed(command, "--model", "mistral", ":") == []


def test_an_option() -> None:
    assert completed("ask", "--res") == ["--resume"]
