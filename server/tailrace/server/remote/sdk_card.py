"""Conversion of agent cards to objects of the official SDK, which is an optional dependency."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from a2a.client.card_resolver import parse_agent_card
from a2a.types import a2a_pb2
from google.protobuf.json_format import ParseError

from tailrace.wrappers import UpstreamError, UpstreamFault

_ADDRESSES = ("supportedInterfaces", "additionalInterfaces", "url")


def to_sdk_card(card: Mapping[str, Any], interface: a2a_pb2.AgentInterface) -> a2a_pb2.AgentCard:
    """Convert the JSON of a card, and replace its interfaces with one interface.

    Raises:
        UpstreamError: The card is not valid.
    """
    fields = {name: value for name, value in card.items() if name not in _ADDRESSES}
    try:
        made = parse_agent_card(deepcopy(fields))
    except (ParseError, AttributeError, TypeError) as error:
        raise UpstreamError(f"the agent card is not valid: {error}", fault=UpstreamFault.INVALID) from None
    made.supported_interfaces.append(interface)
    return made
