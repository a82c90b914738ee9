"""The capabilities and requirements of an agent: the part of its card that binds both sides.

The card declares them (`tailrace.server.protocols.a2a.card`);
`tailrace.server.runtime.operations.Operations` enforces them for every protocol.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tailrace.streaming.a2a.errors import ContentTypeNotSupportedError, ExtensionSupportRequiredError
from tailrace.streaming.a2a.extension import EXTENSION_URI
from tailrace.streaming.a2a.models import AgentExtension, AgentSkill, Message, Part

OWN_EXTENSION = AgentExtension(
    uri=EXTENSION_URI,
    description="Numbered events, resumable streams, reasoning and tool-call channels, usage.",
)
"""The extension that every agent of this server supports, and no client needs."""


@dataclass(frozen=True)
class Capabilities:
    """The capabilities and requirements of an agent.

    Attributes:
        extensions: Extensions of the handler, beside `OWN_EXTENSION`. Every request must activate those that are
            ``required``.
        skills: The skills; one general skill when empty.
        input_modes: Accepted media types, ``*`` for any (``image/*``); all when empty.
        output_modes: Media types of the output; a request that accepts none of them is refused.
        checks_input: Check messages against the input modes; False if the handler does.
    """

    extensions: tuple[AgentExtension, ...] = ()
    skills: tuple[AgentSkill, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    checks_input: bool = True

    @property
    def all_extensions(self) -> tuple[AgentExtension, ...]:
        """Return the extensions for the card."""
        return (OWN_EXTENSION, *self.extensions)

    def activated(self, requested: Iterable[str]) -> tuple[str, ...]:
        """Return the extensions that a request activates: those it names that are supported."""
        wanted = set(requested)
        return tuple(each.uri for each in self.all_extensions if each.uri in wanted)

    def check_extensions(self, activated: Iterable[str]) -> None:
        """Refuse a request that does not activate a required extension (A2A 1.0, section 3.3.4).

        Raises:
            ExtensionSupportRequiredError: It does not activate one.
        """
        given = set(activated)
        missing = [each.uri for each in self.extensions if each.required and each.uri not in given]
        if missing:
            uris = ", ".join(missing)
            raise ExtensionSupportRequiredError(
                f"list {uris} in A2A-Extensions", metadata={"requiredExtensions": uris}
            )

    def check_message(self, message: Message) -> None:
        """Refuse a message with a part of a media type that is not accepted (A2A 1.0, section 3.1.1).

        Raises:
            ContentTypeNotSupportedError: It has one.
        """
        if not self.input_modes or not self.checks_input:
            return
        for at, part in enumerate(message.parts):
            media_type = media_type_of(part)
            if not any(fits(media_type, mode) for mode in self.input_modes):
                taken = ", ".join(self.input_modes)
                raise ContentTypeNotSupportedError(
                    f"message.parts[{at}] is {media_type}; taken: {taken}", metadata={"supportedTypes": taken}
                )

    def check_output_modes(self, accepted: Collection[str]) -> None:
        """Refuse a request whose client accepts none of the media types that the agent gives (A2A 1.0, section 3.2.2).

        Args:
            accepted: Media types, or what clients of older versions send (``text``); everything when empty.

        Raises:
            ContentTypeNotSupportedError: It accepts none of them.
        """
        if not accepted or not self.output_modes:
            return
        wanted = [mode if "/" in mode or mode == "*" else f"{mode}/*" for mode in accepted]
        if not any(fits(given, mode) or fits(mode, given) for given in self.output_modes for mode in wanted):
            given = ", ".join(self.output_modes)
            raise ContentTypeNotSupportedError(
                f"configuration.acceptedOutputModes has none of: {given}", metadata={"supportedTypes": given}
            )


def media_type_of(part: Part) -> str:
    """Return the media type of a part: the declared one, or the usual one of its kind."""
    if part.media_type:
        return part.media_type.partition(";")[0].strip().lower()
    if part.kind == "text":
        return "text/plain"
    return "application/json" if part.kind == "data" else "application/octet-stream"


def fits(media_type: str, mode: str) -> bool:
    """Return whether a media type matches a mode, either half of which may be ``*``: ``image/*``, ``*/*``."""
    mode = mode.partition(";")[0].strip().lower()
    return mode in ("*", "*/*", media_type) or (
        mode.endswith("/*") and media_type.startswith(mode.removesuffix("*"))
    )
