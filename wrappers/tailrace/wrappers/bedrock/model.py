"""Models served by the ConverseStream operation of Amazon Bedrock.

Requests are sent without boto3, which blocks a thread for each stream and parses each frame. With a Bedrock API key, no AWS
package is necessary. Otherwise, botocore provides the credentials and signs the requests.
"""

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack, cast
from urllib.parse import quote

from anyio import to_thread

from tailrace.wrappers.bedrock.converter import BedrockConverter
from tailrace.wrappers.bedrock.decoder import BedrockDecoder
from tailrace.wrappers.bedrock.request import request_members
from tailrace.wrappers.continuation import Prefill
from tailrace.wrappers.decoding.lenient_json import as_mapping
from tailrace.wrappers.decoding.verbatim_json import encode_request
from tailrace.wrappers.errors import ConfigurationError, UpstreamError
from tailrace.wrappers.http import HttpResponse
from tailrace.wrappers.http.direct_model import DirectModel
from tailrace.wrappers.http.http_model import ModelArguments
from tailrace.wrappers.messages import History
from tailrace.wrappers.request_options import NO_PARAMETERS, RequestOptions

if TYPE_CHECKING:
    from botocore.credentials import Credentials, ReadOnlyCredentials

_API_KEY = "AWS_BEARER_TOKEN_BEDROCK"
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ENDPOINTS = ("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "AWS_ENDPOINT_URL")
_SERVICE = "bedrock"  # name of the service in the signature
# Words in the names of models that accept the member ``status`` of a tool result.
_STATUS_MODELS = ("anthropic", "claude", "nova")


class BedrockModel(DirectModel):
    """A model that is called with ``POST {base_url}/model/{name}/converse-stream``.

    Args:
        name: The id of the model, or the id or ARN of an inference profile.
        region: The AWS region; None to use ``AWS_REGION``, ``AWS_DEFAULT_REGION`` or, without an API key, the AWS profile.
        arguments: See `DirectModel`. The default ``base_url`` is ``AWS_ENDPOINT_URL_BEDROCK_RUNTIME``, ``AWS_ENDPOINT_URL`` or
            the endpoint of the region. The default ``api_key`` is ``AWS_BEARER_TOKEN_BEDROCK``. Without an API key, requests are
            signed with credentials from botocore (environment, profile, role, …). ``parameters`` may contain any member of the
            request.

    Raises:
        ConfigurationError: The region or the credentials are missing, or botocore is required but not installed.

    Attributes:
        address: The URL of requests.
    """

    provider = "bedrock"

    def __init__(self, name: str, *, region: str | None = None, **arguments: Unpack[ModelArguments]) -> None:
        super().__init__(name, **arguments)
        self._converter = BedrockConverter(result_status=any(word in name for word in _STATUS_MODELS))
        self._token = self._api_key or os.environ.get(_API_KEY)
        self._region = region or _first_variable(_REGIONS) or ""
        self._credentials: Credentials | None = None
        self._frozen: ReadOnlyCredentials | None = None
        if not self._token:
            self._find_credentials()
        root = self._base_url or _first_variable(_ENDPOINTS)
        if not self._region and not (root and self._token):
            raise ConfigurationError(f"no region for the model {name!r}: set {_REGIONS[0]}")
        suffix = ".cn" if self._region.startswith("cn-") else ""
        root = (root or f"https://bedrock-runtime.{self._region}.amazonaws.com{suffix}").rstrip("/")
        # The HTTP client does not escape colons, and the signature must match the path that is sent.
        self.address = f"{root}/model/{quote(name, safe=':')}/converse-stream"

    @property
    def converter(self) -> BedrockConverter:
        """The converter between the common history and Converse messages."""
        return self._converter

    async def _post(self, history: History, parameters: Mapping[str, Any], cost: int) -> HttpResponse:
        if self._credentials is not None:
            # The call may request new credentials over the network.
            self._frozen = await to_thread.run_sync(self._credentials.get_frozen_credentials)
        return await super()._post(history, parameters, cost)

    async def _find_prefill(self) -> Prefill:
        return Prefill(is_exact=True)  # models other than Anthropic's and Amazon's return 400

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options)

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        request: dict[str, Any] = {**parameters, "messages": self._converter.from_history(history)}
        if "toolConfig" not in parameters:
            names = _called_tools(request["messages"])
            if names:
                # The API requires tool definitions if a conversation has tool calls or results.
                request["toolConfig"] = {"tools": [_bare_tool(name) for name in names]}
        system = self._converter.system_prompt(history)
        if system:
            request["system"] = system
        body = encode_request(request)
        headers = {"content-type": "application/json", "accept": "application/vnd.amazon.eventstream"}
        if self._token:
            return self.address, {**headers, "authorization": f"Bearer {self._token}"}, body
        return self.address, self._sign(headers, body), body

    def _decoder(self) -> BedrockDecoder:
        return BedrockDecoder(provider=self.provider)

    def _status_error(
        self, status: int, headers: Mapping[str, str], body: object, message: str = ""
    ) -> UpstreamError:
        fields = as_mapping(body) or {}
        if "Message" in fields:
            body = {**fields, "message": fields["Message"]}  # AWS's gateway sends ``Message``
        error = super()._status_error(status, headers, body, message)
        error.code = error.code or headers.get("x-amzn-errortype", "").partition(":")[0] or None
        return error

    def _find_credentials(self) -> None:
        try:
            from botocore.session import Session
        except ImportError:
            raise ConfigurationError(
                f"botocore, which signs requests to Bedrock, is not installed: pip install 'tailrace[bedrock]', or set {_API_KEY}"
            ) from None
        session = Session()
        self._region = self._region or cast("Any", session).get_config_variable("region") or ""
        self._credentials = cast("Credentials | None", session.get_credentials())
        if self._credentials is None:
            raise ConfigurationError(
                f"no credentials for the model {self.name!r}: set {_API_KEY}, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )

    def _sign(self, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return the headers with a signature (AWS Signature Version 4), which is valid for a few minutes."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        request = AWSRequest(method="POST", url=self.address, data=body, headers=dict(headers))
        cast("Any", SigV4Auth(self._frozen, _SERVICE, self._region)).add_auth(request)
        return dict(cast("Mapping[str, str]", request.headers).items())


def _called_tools(messages: Iterable[Any]) -> list[str]:
    """Return the names of the tools that a conversation calls, except tools that Bedrock runs."""
    uses = [block["toolUse"] for message in messages for block in message["content"] if "toolUse" in block]
    return list(dict.fromkeys(use["name"] for use in uses if use.get("type") != "server_tool_use"))


def _bare_tool(name: str) -> dict[str, Any]:
    return {"toolSpec": {"name": name, "inputSchema": {"json": dict(NO_PARAMETERS)}}}


def _first_variable(names: tuple[str, ...]) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
