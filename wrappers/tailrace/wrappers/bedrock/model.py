"""Models behind Amazon Bedrock's ConverseStream.

The request is posted by ourselves: boto3 would read the stream with a thread of its own and parse every frame. With a
Bedrock API key nothing of AWS is needed; otherwise botocore finds the credentials and signs the request.
"""

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import aiohttp
import msgspec
from anyio import to_thread

from tailrace.wrappers.bedrock.chunks import BedrockDecoder
from tailrace.wrappers.bedrock.history import BedrockConverter
from tailrace.wrappers.bedrock.request import request_members
from tailrace.wrappers.errors import ConfigurationError, UpstreamError
from tailrace.wrappers.http_model import DirectModel
from tailrace.wrappers.loose_json import as_mapping
from tailrace.wrappers.messages import History
from tailrace.wrappers.options import NO_PARAMETERS, RequestOptions

if TYPE_CHECKING:
    from botocore.credentials import Credentials, ReadOnlyCredentials

_API_KEY = "AWS_BEARER_TOKEN_BEDROCK"
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ENDPOINTS = ("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "AWS_ENDPOINT_URL")
_SERVICE = "bedrock"  # as the signature names it
# Makers whose models know that a tool's result may be marked as an error.
_KNOW_STATUS = ("anthropic", "claude", "nova")


class BedrockModel(DirectModel):
    """A model behind ``POST {base_url}/model/{name}/converse-stream``.

    Args:
        name: The model's id, or the id or ARN of an inference profile.
        base_url: The service's root; ``AWS_ENDPOINT_URL_BEDROCK_RUNTIME``, ``AWS_ENDPOINT_URL``, or the region's own
            when None.
        api_key: A Bedrock API key; ``AWS_BEARER_TOKEN_BEDROCK`` when None. Where there is none either, requests are
            signed with the credentials that botocore finds (environment, profile, role, …).
        region: The region; ``AWS_REGION``, ``AWS_DEFAULT_REGION``, or that of the profile when None.
        connect_timeout: Seconds allowed for opening a connection.
        read_timeout: Seconds of silence allowed before and between the pieces of an answer.
        max_retries: How often a request is sent again when nothing of an answer was received yet.
        parameters: Further members of the request (``inferenceConfig``, ``toolConfig``, …).

    Raises:
        ConfigurationError: There is no region, there are no credentials, or botocore is needed and not installed.

    Attributes:
        address: Where requests are posted.
    """

    provider = "bedrock"

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        region: str | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float = 60.0,
        max_retries: int = 2,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            name,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            max_retries=max_retries,
            parameters=parameters,
        )
        self._converter = BedrockConverter(result_status=any(word in name for word in _KNOW_STATUS))
        self._token = api_key or os.environ.get(_API_KEY)
        self._region = region or _first_variable(_REGIONS) or ""
        self._credentials: Credentials | None = None
        self._frozen: ReadOnlyCredentials | None = None
        if not self._token:
            self._find_credentials()
        root = base_url or _first_variable(_ENDPOINTS)
        if not self._region and not (root and self._token):
            raise ConfigurationError(f"no region for the model {name!r}: set {_REGIONS[0]}")
        suffix = ".cn" if self._region.startswith("cn-") else ""
        root = (root or f"https://bedrock-runtime.{self._region}.amazonaws.com{suffix}").rstrip("/")
        # The client sends a colon as it is, and the signature covers the path as it is sent.
        self.address = f"{root}/model/{quote(name, safe=':')}/converse-stream"

    @property
    def converter(self) -> BedrockConverter:
        """Between the common history and Converse messages."""
        return self._converter

    async def _post(self, history: History, parameters: Mapping[str, Any]) -> aiohttp.ClientResponse:
        if self._credentials is not None:
            # Credentials that expire are fetched anew here, which may ask the network.
            self._frozen = await to_thread.run_sync(self._credentials.get_frozen_credentials)
        return await super()._post(history, parameters)

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options)

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        request: dict[str, Any] = {**parameters, "messages": self._converter.from_history(history)}
        if "toolConfig" not in parameters:
            called = _called(request["messages"])
            if called:
                # The API refuses calls and results without it.
                request["toolConfig"] = {"tools": [_bare_tool(name) for name in called]}
        system = self._converter.system_prompt(history)
        if system:
            request["system"] = system
        body = msgspec.json.encode(request)
        headers = {"content-type": "application/json", "accept": "application/vnd.amazon.eventstream"}
        if self._token:
            return self.address, {**headers, "authorization": f"Bearer {self._token}"}, body
        return self.address, self._signed(headers, body), body

    def _decoder(self) -> BedrockDecoder:
        return BedrockDecoder(provider=self.provider)

    def _refused(
        self, status: int, headers: Mapping[str, str], body: object, message: str = ""
    ) -> UpstreamError:
        fields = as_mapping(body) or {}
        if "Message" in fields:
            body = {**fields, "message": fields["Message"]}  # as AWS's gateway spells it
        error = super()._refused(status, headers, body, message)
        error.code = error.code or headers.get("x-amzn-errortype", "").partition(":")[0] or None
        return error

    def _find_credentials(self) -> None:
        try:
            from botocore.session import Session
        except ImportError:
            raise ConfigurationError(
                f"requests to Bedrock are signed with botocore: pip install 'tailrace[bedrock]', or set {_API_KEY}"
            ) from None
        session = Session()
        self._region = self._region or cast("Any", session).get_config_variable("region") or ""
        self._credentials = cast("Credentials | None", session.get_credentials())
        if self._credentials is None:
            raise ConfigurationError(
                f"no credentials for the model {self.name!r}: set {_API_KEY}, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )

    def _signed(self, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        """The headers with those of the signature (AWS Signature Version 4), which is valid for some minutes."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        request = AWSRequest(method="POST", url=self.address, data=body, headers=dict(headers))
        cast("Any", SigV4Auth(self._frozen, _SERVICE, self._region)).add_auth(request)
        return dict(cast("Mapping[str, str]", request.headers).items())


def _called(messages: Iterable[Any]) -> list[str]:
    """The names of the tools that are called in a conversation, except those that the provider ran."""
    uses = [block["toolUse"] for message in messages for block in message["content"] if "toolUse" in block]
    return list(dict.fromkeys(use["name"] for use in uses if use.get("type") != "server_tool_use"))


def _bare_tool(name: str) -> dict[str, Any]:
    return {"toolSpec": {"name": name, "inputSchema": {"json": dict(NO_PARAMETERS)}}}


def _first_variable(names: tuple[str, ...]) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
