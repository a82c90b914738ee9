"""Maximum lengths of identifiers. A long identifier would enlarge the indexes of the store, and each event that contains it."""

from tailrace.streaming.a2a.errors import InvalidParamsError

MAX_ID_LENGTH = 256
"""Maximum characters of an identifier that a caller chooses."""

MAX_TASK_ID_LENGTH = MAX_ID_LENGTH + len("~") + 32
"""Maximum characters of a task id, which may be an identifier from the caller with a suffix (`client_task_ids`)."""


def check_id(name: str, value: str) -> None:
    """Check the length of an identifier.

    Args:
        name: The name of the identifier in the request, for errors.
        value: The identifier, which may be empty.

    Raises:
        InvalidParamsError: The identifier is longer than `MAX_ID_LENGTH`.
    """
    if len(value) > MAX_ID_LENGTH:
        raise InvalidParamsError(f"{name} is longer than {MAX_ID_LENGTH} characters")
