"""The life of a task, as a table.

This file alone defines the transitions between states. The diagram in
``docs/lifecycle.md`` is made from the table by `diagram`.

Source: A2A 1.0, ``TaskState`` and section 3 (terminal states are final; interrupted ones wait for the caller).
"""

from collections.abc import Mapping
from enum import StrEnum

from tailrace.wrappers import ProtocolError


class TaskState(StrEnum):
    """A task's state, under its A2A 1.0 JSON name."""

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
        """The task is over and never changes again."""
        return self in TERMINAL

    @property
    def interrupted(self) -> bool:
        """The task waits for its caller; the next message to it goes on with it."""
        return self in INTERRUPTED


_S = TaskState
TERMINAL = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELED, _S.REJECTED})
INTERRUPTED = frozenset({_S.INPUT_REQUIRED, _S.AUTH_REQUIRED})

TRANSITIONS: Mapping[TaskState, frozenset[TaskState]] = {
    # A task that was accepted may be worked on, or end before any work began.
    _S.SUBMITTED: frozenset({_S.WORKING, *INTERRUPTED, *TERMINAL}),
    # WORKING may follow itself: that is how progress is reported.
    _S.WORKING: frozenset({_S.WORKING, *INTERRUPTED, *TERMINAL}),
    # The answer came (WORKING), the question was replaced by another, or the task ended while it waited.
    _S.INPUT_REQUIRED: frozenset({_S.WORKING, *INTERRUPTED, *TERMINAL}),
    _S.AUTH_REQUIRED: frozenset({_S.WORKING, *INTERRUPTED, *TERMINAL}),
    **{state: frozenset[TaskState]() for state in (_S.COMPLETED, _S.FAILED, _S.CANCELED, _S.REJECTED)},
}


class IllegalTransition(ProtocolError):
    """A state that may not follow the present one.

    Attributes:
        current: The state the task is in.
        wanted: The state that was asked for.
    """

    def __init__(self, current: TaskState, wanted: TaskState) -> None:
        super().__init__(
            f"a task in state {current} cannot go to {wanted}" + (": it is over" if current.terminal else "")
        )
        self.current = current
        self.wanted = wanted


def advance(current: TaskState, wanted: TaskState) -> TaskState:
    """Return ``wanted`` when it may follow ``current``.

    Raises:
        IllegalTransition: It may not.
    """
    if wanted not in TRANSITIONS[current]:
        raise IllegalTransition(current, wanted)
    return wanted


def diagram() -> str:
    """The table as a Mermaid state diagram (text, ends with a newline)."""

    def name(state: TaskState) -> str:
        return state.removeprefix("TASK_STATE_").lower()  # Mermaid takes no hyphens in a name

    lines = ["stateDiagram-v2", f"    [*] --> {name(_S.SUBMITTED)}"]
    for current, following in TRANSITIONS.items():
        lines += [f"    {name(current)} --> {name(state)}" for state in _S if state in following]
        if current.terminal:
            lines.append(f"    {name(current)} --> [*]")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(diagram(), end="")  # noqa: T201 — this is the command that makes the diagram
