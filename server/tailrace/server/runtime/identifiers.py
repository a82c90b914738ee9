"""The bound of identifiers that callers choose: indexes of the store contain them, and events repeat them."""

from tailrace.streaming.a2a.errors import InvalidParamsError

MAX_ID_LENGTH = 256
"""Maximum characters of an identifier that a caller chooses."""


def check_id(name: str, value: str) -> None:
    """Check the length of an identifier.

    Args:
        name: The member of the request.
        value: The identifier; may be empty.

    Raises:
        InvalidParamsError: It is longer than `MAX_ID_LENGTH`.
    """
    if len(value) > MAX_ID_LENGTH:
        raise InvalidParamsError(f"{name} is longer than {MAX_ID_LENGTH} characters")
