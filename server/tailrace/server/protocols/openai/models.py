"""The names of models that clients of OpenAI's APIs may request."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.server.runtime.caller import Caller
from tailrace.server.settings import Settings
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.http.direct_model import DirectModel
from tailrace.wrappers.messages import clipped

ANY_NAME = "*"
"""An alias with this name matches all names that are not listed."""

MAX_NAME_LENGTH = 200
"""Maximum length of an unlisted model name. Every chunk repeats the name."""


def embedding_targets(settings: Settings) -> Mapping[str, str]:
    """Return the targets (``PROVIDER:MODEL``) of embedding models, by alias."""
    aliases = _aliases(settings)
    return {name: target for name, target in aliases.items() if target not in ("", settings.model)}


def _aliases(settings: Settings) -> Mapping[str, str]:
    pairs = (alias.partition("=") for alias in settings.model_aliases)
    return {name.strip(): target.strip() for name, _, target in pairs}


class ModelNames(ABC):
    """The model names that a caller may request."""

    @abstractmethod
    def listed_for(self, caller: Caller) -> Sequence[str]:
        """Return the names that are listed for a caller."""

    @abstractmethod
    def known_name(self, name: str, caller: Caller) -> str:
        """Return the name if it belongs to an agent or an embedding model, or if any name is allowed.

        Raises:
            OpenAIError: The model is unknown, or its name is invalid.
        """

    @abstractmethod
    def select(self, name: str, caller: Caller) -> tuple[str, Caller]:
        """Select the agent for a request.

        Returns:
            The name for the response, and the caller with the selected agent.

        Raises:
            OpenAIError: The model is unknown, its name is invalid, or it is an embedding model.
        """

    @abstractmethod
    def accepts_native_tools(self, name: str) -> bool:
        """Return whether a model is known and accepts tools of the Responses API that are not functions."""

    @abstractmethod
    def embedding(self, name: str) -> DirectModel:
        """Return the embedding model for a requested name.

        Raises:
            OpenAIError: The model is unknown, its name is invalid, or it is an agent.
        """


class ServedModels(ModelNames):
    """The agent of a server and its embedding models, by the names that clients may request.

    Args:
        names: The names of the agent. The first name is the main name.
        embeddings: The embedding models by alias (see `embedding_targets`).
        accepts_native_tools: See `ModelNames.accepts_native_tools`.

    Raises:
        ConfigurationError: The target of an alias is not an embedding model.
    """

    def __init__(
        self,
        settings: Settings,
        names: Sequence[str],
        embeddings: Mapping[str, object],
        *,
        accepts_native_tools: bool = False,
    ) -> None:
        self._agent = names[0]
        self._accepts_native_tools = accepts_native_tools
        self._embeddings: dict[str, DirectModel] = {}
        for name, model in embeddings.items():
            if not isinstance(model, DirectModel) or not model.has_embeddings:
                raise ConfigurationError(
                    f"TAILRACE_MODEL_ALIASES: the target of {name!r} is neither this server's model ({settings.model}) nor "
                    "one of a provider with embeddings"
                )
            self._embeddings[name] = model
        aliases = _aliases(settings)
        self._any_name = ANY_NAME in aliases
        agents = [*names, *(name for name in aliases if name not in self._embeddings)]
        self._agent_names = frozenset([*agents, *filter(None, [settings.model])])
        self._listed = [name for name in dict.fromkeys([*agents, *self._embeddings]) if name != ANY_NAME]

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Close the connections of the embedding models at the end of the block."""
        async with AsyncExitStack() as stack:
            for model in self._embeddings.values():
                stack.push_async_callback(model.aclose)
            yield

    def listed_for(self, caller: Caller) -> Sequence[str]:
        """Return all names. All callers get the same list."""
        return self._listed

    def accepts_native_tools(self, name: str) -> bool:
        """Return whether the agent's model accepts native tools. The name is ignored."""
        return self._accepts_native_tools

    def select(self, name: str, caller: Caller) -> tuple[str, Caller]:
        """Return the name for the response. Without a requested name, this is the main name of the agent."""
        if not name:
            return self._agent, caller
        if name in self._agent_names:
            return name, caller
        if name in self._embeddings:
            raise _refusal(name, "is a model for embeddings: POST /v1/embeddings")
        if not self._any_name or ANY_NAME in self._embeddings:
            raise unknown_model(name)
        return _checked(name), caller

    def known_name(self, name: str, caller: Caller) -> str:
        """Return the name if it is listed, or if any name is allowed."""
        if name in self._agent_names or name in self._embeddings:
            return name
        if not self._any_name:
            raise unknown_model(name)
        return _checked(name)

    def embedding(self, name: str) -> DirectModel:
        """Return the embedding model for a requested name."""
        model = self._embeddings.get(name)
        if model is None and name and name not in self._agent_names:
            model = self._embeddings.get(ANY_NAME)
            if model is not None:
                _checked(name)
        if model is not None:
            return model
        if not name or name in self._agent_names or self._any_name:
            raise _refusal(
                name or self._agent,
                "has no embeddings; the operator can add a model that has them: "
                "TAILRACE_MODEL_ALIASES=NAME=PROVIDER:MODEL",
            )
        raise unknown_model(name)


def _checked(name: str) -> str:
    if len(name) > MAX_NAME_LENGTH or not name.isprintable():
        message = f"a model's name has at most {MAX_NAME_LENGTH} printable characters"
        raise OpenAIError(400, message, code="invalid_value", param="model")
    return name


def _refusal(name: str, reason: str) -> OpenAIError:
    message = f"The model '{clipped(name, MAX_NAME_LENGTH)}' {reason}"
    return OpenAIError(400, message, code="unsupported_value", param="model")


def unknown_model(
    name: str, advice: str = "; the operator can add others (TAILRACE_MODEL_ALIASES)"
) -> OpenAIError:
    """Return the error for a model that does not exist or that the caller may not use."""
    message = (
        f"The model '{clipped(name, MAX_NAME_LENGTH)}' does not exist or you do not have access to it. GET /v1/models lists the "
        f"names{advice}."
    )
    return OpenAIError(404, message, code="model_not_found", param="model")
