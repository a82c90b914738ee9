"""States of a task and the table of their transitions.

`diagram` creates the diagram in ``docs/lifecycle.md``.

Source: A2A 1.0, ``TaskState`` and section 3 (terminal states are final; interrupted tasks wait for the caller).
"""

from collections.abc import Mapping
from enum import StrEnum

from tailrace.wrappers import ProtocolError


class TaskState(StrEnum):
    """The state of a task. The values are the JSON names of A2A 1.0."""

    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELED"
    REJECTED = "TASK_STATE_REJECTED"

    @property
    def terminal(self) -> bool:
        """True if the task has ended. An ended task cannot change."""
        return self in TERMINAL

    @property
    def interrupted(self) -> bool:
        """True if the task waits for a message or for credentials."""
        return self in INTERRUPTED


_S = TaskState
TERMINAL = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELED, _S.REJECTED})
INTERRUPTED = frozenset({_S.INPUT_REQUIRED, _S.AUTH_REQUIRED})

TRANSITIONS: Mapping[TaskState, frozenset[TaskState]] = {
    # The agent starts, asks a question, or the task ends before the agent starts.
    _S.SUBMITTED: frozenset({_S.WORKING, *INTERRUPTED, *TERMINAL}),
    # WORKING follows WORKING if the agent reports progress.
    _S.WORKING: frozenset({_S.WORKING, *INTERRUPTED, *TERMINAL}),
    # The caller replies (WORKING), the agent replaces its question, or the task ends.
    _S.INPUT_REQUIRED: frozenset({_S.WORKING, *INTERRUPTED, *TERMINAL}),
    _S.AUTH_REQUIRED: frozenset({_S.WORKING, *INTERRUPTED, *TERMINAL}),
    **{state: frozenset[TaskState]() for state in (_S.COMPLETED, _S.FAILED, _S.CANCELED, _S.REJECTED)},
}


class IllegalTransition(ProtocolError):
    """A transition that the table does not allow."""

    def __init__(self, current: TaskState, wanted: TaskState) -> None:
        super().__init__(
            f"a task in state {current} cannot go to {wanted}" + (": it is over" if current.terminal else "")
        )
        self.current = current
        self.wanted = wanted


def advance(current: TaskState, wanted: TaskState) -> TaskState:
    """Return ``wanted``.

    Raises:
        IllegalTransition: The table does not allow the transition.
    """
    if wanted not in TRANSITIONS[current]:
        raise IllegalTransition(current, wanted)
    return wanted


def diagram() -> str:
    """Return the table as a Mermaid state diagram."""

    def name(state: TaskState) -> str:
        return state.removeprefix("TASK_STATE_").lower()  # names in Mermaid must not contain hyphens

    lines = ["stateDiagram-v2", f"    [*] --> {name(_S.SUBMITTED)}"]
    for current, following in TRANSITIONS.items():
        lines += [f"    {name(current)} --> {name(state)}" for state in _S if state in following]
        if current.terminal:
            lines.append(f"    {name(current)} --> [*]")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(diagram(), end="")  # noqa: T201 — the command that creates the diagram
