"""What an agent offers its callers, and what it asks of them: the part of its card that binds both sides.

The card declares it (`tailrace.server.card`); every binding holds callers to it through
`tailrace.server.operations.Operations`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.streaming.a2a.errors import ContentTypeNotSupportedError, ExtensionSupportRequiredError
from tailrace.streaming.a2a.models import AgentExtension, AgentSkill, Message, Part
from tailrace.streaming.extension import EXTENSION_URI

OWN_EXTENSION = AgentExtension(
    uri=EXTENSION_URI,
    description="Numbered events, resumable streams, reasoning and tool-call channels, usage.",
)
"""The extension that every agent of this server speaks, and no client must."""


@dataclass(frozen=True)
class Offer:
    """What an agent offers, and what it asks for.

    Attributes:
        extensions: Extensions that the handler speaks, beside `OWN_EXTENSION`. One that is ``required`` must be
            asked for by every request.
        skills: What the agent is good at; one general skill when empty.
        input_modes: Media types that are taken, ``*`` for any (``image/*``); everything is when empty.
        output_modes: Media types that are given.
        checks_input: Messages are held to the input modes; False where somebody else does that.
    """

    extensions: tuple[AgentExtension, ...] = ()
    skills: tuple[AgentSkill, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    checks_input: bool = True

    @property
    def all_extensions(self) -> tuple[AgentExtension, ...]:
        """What the card lists."""
        return (OWN_EXTENSION, *self.extensions)

    def activated(self, asked: Iterable[str]) -> tuple[str, ...]:
        """The extensions that a request uses: of those it asks for, the ones that are spoken here."""
        wanted = set(asked)
        return tuple(each.uri for each in self.all_extensions if each.uri in wanted)

    def check_extensions(self, activated: Iterable[str]) -> None:
        """Refuse a request without an extension that is required (A2A 1.0, section 3.3.4).

        Raises:
            ExtensionSupportRequiredError: It does not ask for one.
        """
        given = set(activated)
        missing = [each.uri for each in self.extensions if each.required and each.uri not in given]
        if missing:
            uris = ", ".join(missing)
            raise ExtensionSupportRequiredError(
                f"list {uris} in A2A-Extensions", metadata={"requiredExtensions": uris}
            )

    def check_message(self, message: Message) -> None:
        """Refuse a message with a part of a media type that is not taken (A2A 1.0, section 3.1.1).

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


def media_type_of(part: Part) -> str:
    """What a part is: what it says itself, or what its kind usually is."""
    if part.media_type:
        return part.media_type.partition(";")[0].strip().lower()
    if part.kind == "text":
        return "text/plain"
    return "application/json" if part.kind == "data" else "application/octet-stream"


def fits(media_type: str, mode: str) -> bool:
    """Whether a media type is one of a mode, which may leave its second half or both open: ``image/*``, ``*/*``."""
    mode = mode.partition(";")[0].strip().lower()
    return mode in ("*", "*/*", media_type) or (
        mode.endswith("/*") and media_type.startswith(mode.removesuffix("*"))
    )
