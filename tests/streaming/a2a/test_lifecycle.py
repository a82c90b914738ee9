"""The lifecycle of a task: transitions between states, and the diagram of them."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.streaming.a2a.lifecycle import (
    INTERRUPTED,
    TERMINAL,
    TRANSITIONS,
    IllegalTransition,
    TaskState,
    advance,
    diagram,
)
from tailrace.wrappers import ProtocolError

PAGE = Path(__file__).parents[3] / "docs" / "lifecycle.md"
OVER = {TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED}
# The same rule without the table: an active task may enter any state but the initial one.
ALLOWED = {
    (current, wanted)
    for current, wanted in itertools.product(TaskState, TaskState)
    if current not in OVER and wanted is not TaskState.SUBMITTED
}


def test_the_states_are_those_of_a2a():
    assert {state.value for state in TaskState} == {
        "TASK_STATE_SUBMITTED",
        "TASK_STATE_WORKING",
        "TASK_STATE_COMPLETED",
        "TASK_STATE_FAILED",
        "TASK_STATE_CANCELED",
        "TASK_STATE_INPUT_REQUIRED",
        "TASK_STATE_REJECTED",
        "TASK_STATE_AUTH_REQUIRED",
    }


def test_the_table_has_a_row_for_every_state():
    assert set(TRANSITIONS) == set(TaskState)


@pytest.mark.parametrize(("current", "wanted"), sorted(ALLOWED))
def test_an_allowed_move_is_made(current: TaskState, wanted: TaskState):
    assert advance(current, wanted) is wanted


@pytest.mark.parametrize(
    ("current", "wanted"), sorted(set(itertools.product(TaskState, TaskState)) - ALLOWED)
)
def test_a_forbidden_transition_raises_an_error_that_names_it(current: TaskState, wanted: TaskState):
    with pytest.raises(IllegalTransition) as caught:
        advance(current, wanted)
    assert (caught.value.current, caught.value.wanted) == (current, wanted)
    assert current in str(caught.value)
    assert wanted in str(caught.value)
    assert str(caught.value).endswith("it is over") == (current in OVER)


@pytest.mark.parametrize("state", TaskState)
def test_a_terminal_state_is_final_and_only_a_terminal_one(state: TaskState):
    assert state.terminal == (state in OVER)
    assert state.terminal == (not TRANSITIONS[state])


def test_a_state_that_waits_for_the_caller_is_interrupted_and_not_over():
    assert {state for state in TaskState if state.interrupted} == INTERRUPTED
    assert {TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED} == INTERRUPTED
    assert not INTERRUPTED & TERMINAL


def test_an_illegal_move_is_the_callers_fault():
    assert issubclass(IllegalTransition, ProtocolError)


def test_the_page_holds_exactly_the_diagram_of_the_table():
    assert re.findall(r"```mermaid\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL) == [diagram()]


def test_the_page_describes_every_state():
    text = PAGE.read_text(encoding="utf-8")
    assert [state for state in TaskState if f"| `{state}` |" not in text] == []


def test_the_diagram_has_one_arrow_for_every_allowed_move():
    # State names in Mermaid cannot contain hyphens.
    name = r"(\w+|\[\*\])"
    arrows = re.findall(rf"^    {name} --> {name}$", diagram(), re.MULTILINE)
    assert len(arrows) == diagram().count("-->")
    inner = {(start, end) for start, end in arrows if "[*]" not in (start, end)}
    assert len(arrows) == len(set(arrows))
    assert len(inner) == len(ALLOWED)
    assert ("[*]", "submitted") in arrows
    assert {start for start, end in arrows if end == "[*]"} == {
        "completed",
        "failed",
        "canceled",
        "rejected",
    }


def test_the_command_on_the_page_prints_the_diagram():
    command = "python -m tailrace.streaming.a2a.lifecycle"
    assert command in PAGE.read_text(encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, *command.split()[1:]], capture_output=True, text=True, check=True, timeout=30
    )
    assert ran.stdout == diagram()
