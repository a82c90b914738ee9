"""A tool and a function for ``--tools`` and ``--approve``, which name them by module."""

from tailrace.wrappers import ContentPartToolCall

LIMIT = 100


async def buy(amount: int) -> str:
    """Buy something."""
    return f"bought for {amount}"


def is_expensive(call: ContentPartToolCall) -> bool:
    """Return True for a call that requires an approval."""
    return call.name == "buy" and call.arguments["amount"] > LIMIT
