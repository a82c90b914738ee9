"""The capabilities and requirements of an agent: extensions, skills, and media types of input and output.

The agent card lists them. `Operations` checks the extensions and output media types of each request, and `ServedAgents` checks
the media types of messages.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, cast

from tailrace.streaming.a2a.errors import ContentTypeNotSupportedError, ExtensionSupportRequiredError
from tailrace.streaming.a2a.models import AgentExtension, AgentSkill, Message, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI

OWN_EXTENSION = AgentExtension(
    uri=EXTENSION_URI,
    description="Numbered events, resumable streams, reasoning and tool-call channels, usage.",
)
"""The stream extension. Clients are not required to support it."""

_CALL_DATA = frozenset({"tool_results", "approval_responses"})


@dataclass(frozen=True)
class Capabilities:
    """The capabilities and requirements of an agent.

    Attributes:
        extensions: Extensions in addition to `OWN_EXTENSION`. Each request must activate the ``required`` ones.
        skills: The skills. If empty, the card has one general skill.
        input_modes: The media types that messages may contain, for example ``image/*``. If empty, all media types are accepted.
        output_modes: The media types of the output. A request that accepts none of them is rejected.
        checks_input: False if the handler itself checks the media types of messages.
        webhook_keys: The URL of the public keys for signed push notifications; empty if they are not signed.
    """

    extensions: tuple[AgentExtension, ...] = ()
    skills: tuple[AgentSkill, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    checks_input: bool = True
    webhook_keys: str = ""

    @property
    def all_extensions(self) -> tuple[AgentExtension, ...]:
        """The extensions in the card."""
        own = OWN_EXTENSION
        if self.webhook_keys:
            own = own.model_copy(update={"params": {"webhookKeys": self.webhook_keys}})
        return (own, *self.extensions)

    def activated(self, requested: Iterable[str]) -> tuple[str, ...]:
        """Return the requested extensions that the agent supports."""
        wanted = set(requested)
        return tuple(each.uri for each in self.all_extensions if each.uri in wanted)

    def check_extensions(self, activated: Iterable[str]) -> None:
        """Check that a request activates all required extensions (A2A 1.0, section 3.3.4).

        Raises:
            ExtensionSupportRequiredError: The request does not activate a required extension.
        """
        active = set(activated)
        missing = [each.uri for each in self.extensions if each.required and each.uri not in active]
        if missing:
            uris = ", ".join(missing)
            raise ExtensionSupportRequiredError(
                f"list {uris} in A2A-Extensions", metadata={"requiredExtensions": uris}
            )

    def check_message(self, message: Message) -> None:
        """Check the media types of a message (A2A 1.0, section 3.1.1). Results and decisions for tool calls are always accepted.

        Raises:
            ContentTypeNotSupportedError: The agent does not accept the media type of a part.
        """
        if not self.input_modes or not self.checks_input:
            return
        for at, part in enumerate(message.parts):
            media_type = media_type_of(part)
            if not _is_about_calls(part) and not any(fits(media_type, mode) for mode in self.input_modes):
                taken = ", ".join(self.input_modes)
                raise ContentTypeNotSupportedError(
                    f"message.parts[{at}] is {media_type}; accepted: {taken}",
                    metadata={"supportedTypes": taken},
                )

    def check_output_modes(self, accepted: Collection[str]) -> None:
        """Check that a client accepts at least one media type of the agent's output (A2A 1.0, section 3.2.2).

        Args:
            accepted: The media types that the client accepts; empty for all. Older A2A versions have ``text`` instead of
                ``text/*``.

        Raises:
            ContentTypeNotSupportedError: The client accepts no media type of the output.
        """
        if not accepted or not self.output_modes:
            return
        wanted = [mode if "/" in mode or mode == "*" else f"{mode}/*" for mode in accepted]
        if not any(
            fits(supported, mode) or fits(mode, supported)
            for supported in self.output_modes
            for mode in wanted
        ):
            supported = ", ".join(self.output_modes)
            raise ContentTypeNotSupportedError(
                f"configuration.acceptedOutputModes has none of: {supported}",
                metadata={"supportedTypes": supported},
            )


def _is_about_calls(part: Part) -> bool:
    data: object = part.data
    return isinstance(data, dict) and not _CALL_DATA.isdisjoint(cast("dict[str, Any]", data))


def media_type_of(part: Part) -> str:
    """Return the declared or default media type of a part."""
    if part.media_type:
        return part.media_type.partition(";")[0].strip().lower()
    if part.kind == "text":
        return "text/plain"
    return "application/json" if part.kind == "data" else "application/octet-stream"


def fits(media_type: str, mode: str) -> bool:
    """Return whether a media type matches a pattern such as ``image/png``, ``image/*`` or ``*/*``."""
    mode = mode.partition(";")[0].strip().lower()
    return mode in ("*", "*/*", media_type) or (
        mode.endswith("/*") and media_type.startswith(mode.removesuffix("*"))
    )
