"""Hypothesis strategies for the objects of A2A 1.0 that protobuf can represent without loss."""

from datetime import UTC, datetime
from typing import Any, TypeVar

from hypothesis import strategies as st

from tailrace.streaming.a2a import (
    A2AModel,
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentProvider,
    AgentSkill,
    Artifact,
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SendMessageResponse,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

M = TypeVar("M", bound=A2AModel)


def build(kind: type[M], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[M]:
    """Objects with these fields. (`builds` would name required fields by their JSON names.)"""
    return st.fixed_dictionaries(fields).map(lambda given: kind(**given))


text = st.text(max_size=8)
name = st.text(min_size=1, max_size=6)
# Every number in protobuf's JSON is a double, which is exact for integers up to 2**53.
json_value: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
json_object = st.dictionaries(text, json_value, max_size=2)
times = st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC))
names = st.lists(name, max_size=2)

_about = {"metadata": json_object, "filename": text, "media_type": text}
parts = st.one_of(
    build(Part, text=text, **_about),
    build(Part, raw=st.binary(max_size=8), **_about),
    build(Part, url=name, **_about),
    build(Part, data=json_value, **_about),
)
_parts = st.lists(parts, min_size=1, max_size=2)
messages = build(
    Message,
    message_id=name,
    role=st.sampled_from(Role),
    parts=_parts,
    context_id=text,
    task_id=text,
    metadata=json_object,
    extensions=names,
    reference_task_ids=names,
)
artifacts = build(
    Artifact,
    artifact_id=name,
    parts=_parts,
    name=text,
    description=text,
    metadata=json_object,
    extensions=names,
)
statuses = build(
    TaskStatus,
    state=st.sampled_from(TaskState),
    message=st.none() | messages,
    timestamp=st.none() | times,
)
tasks = build(
    Task,
    id=name,
    status=statuses,
    context_id=text,
    artifacts=st.lists(artifacts, max_size=2),
    history=st.lists(messages, max_size=2),
    metadata=json_object,
)
status_updates = build(
    TaskStatusUpdateEvent, task_id=name, context_id=name, status=statuses, metadata=json_object
)
artifact_updates = build(
    TaskArtifactUpdateEvent,
    task_id=name,
    context_id=name,
    artifact=artifacts,
    append=st.booleans(),
    last_chunk=st.booleans(),
    metadata=json_object,
)
stream_responses = st.one_of(
    build(StreamResponse, task=tasks),
    build(StreamResponse, message=messages),
    build(StreamResponse, status_update=status_updates),
    build(StreamResponse, artifact_update=artifact_updates),
)
webhooks = build(
    TaskPushNotificationConfig,
    url=name,
    id=text,
    task_id=text,
    token=text,
    authentication=st.none() | build(AuthenticationInfo, scheme=name, credentials=text),
    tenant=text,
)
_history_length = st.none() | st.integers(0, 2**31 - 1)
configurations = build(
    SendMessageConfiguration,
    accepted_output_modes=names,
    task_push_notification_config=st.none() | webhooks,
    history_length=_history_length,
    return_immediately=st.booleans(),
)
_flag = st.none() | st.booleans()


def _requirement(schemes: dict[str, list[str]]) -> dict[str, Any]:
    return {"schemes": {key: {"list": scopes} if scopes else {} for key, scopes in schemes.items()}}


def _client_credentials(url: str, scopes: dict[str, str]) -> dict[str, Any]:
    return {"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": url, "scopes": scopes}}}}


def _api_key(where: str) -> dict[str, Any]:
    return {"apiKeySecurityScheme": {"location": "header", "name": where}}


def _http_auth(scheme: str) -> dict[str, Any]:
    return {"httpAuthSecurityScheme": {"scheme": scheme}}


_security = st.lists(st.dictionaries(name, names, min_size=1, max_size=2).map(_requirement), max_size=2)
_schemes: st.SearchStrategy[dict[str, dict[str, Any]]] = st.dictionaries(
    name,
    st.one_of(
        st.builds(_api_key, name),
        st.builds(_http_auth, name),
        st.builds(_client_credentials, name, st.dictionaries(name, name, min_size=1, max_size=2)),
    ),
    max_size=2,
)
cards = build(
    AgentCard,
    name=name,
    description=name,
    version=name,
    supported_interfaces=st.lists(
        build(AgentInterface, url=name, protocol_binding=name, protocol_version=name, tenant=text),
        min_size=1,
        max_size=2,
    ),
    capabilities=build(
        AgentCapabilities,
        streaming=_flag,
        push_notifications=_flag,
        extended_agent_card=_flag,
        extensions=st.lists(
            build(AgentExtension, uri=name, description=text, required=st.booleans(), params=json_object),
            max_size=1,
        ),
    ),
    default_input_modes=st.lists(name, min_size=1, max_size=2),
    default_output_modes=st.lists(name, min_size=1, max_size=2),
    skills=st.lists(
        build(
            AgentSkill,
            id=name,
            name=name,
            description=name,
            tags=st.lists(name, min_size=1, max_size=2),
            examples=names,
            input_modes=names,
            output_modes=names,
            security_requirements=_security,
        ),
        min_size=1,
        max_size=1,
    ),
    provider=st.none() | build(AgentProvider, organization=name, url=name),
    documentation_url=text,
    icon_url=text,
    security_schemes=_schemes,
    security_requirements=_security,
)
task_lists = build(
    ListTasksRequest,
    tenant=text,
    context_id=text,
    status=st.none() | st.sampled_from(TaskState),
    page_size=st.integers(1, 100),
    page_token=text,
    history_length=_history_length,
    status_timestamp_after=st.none() | times,
    include_artifacts=st.booleans(),
)

objects: st.SearchStrategy[A2AModel] = st.one_of(
    stream_responses,
    cards,
    webhooks,
    task_lists,
    build(
        SendMessageRequest, message=messages, configuration=configurations, metadata=json_object, tenant=text
    ),
    build(SendMessageResponse, task=tasks) | build(SendMessageResponse, message=messages),
    build(GetTaskRequest, id=name, history_length=_history_length, tenant=text),
    build(CancelTaskRequest, id=name, metadata=json_object, tenant=text),
    build(SubscribeToTaskRequest, id=name, tenant=text),
    build(
        ListTasksResponse,
        tasks=st.lists(tasks, max_size=2),
        next_page_token=text,
        page_size=st.integers(0, 100),
        total_size=st.integers(0, 2**31 - 1),
    ),
    build(GetTaskPushNotificationConfigRequest, task_id=name, id=name, tenant=text),
    build(DeleteTaskPushNotificationConfigRequest, task_id=name, id=name, tenant=text),
    build(
        ListTaskPushNotificationConfigsRequest,
        task_id=name,
        page_size=st.integers(0, 2**31 - 1),
        page_token=text,
        tenant=text,
    ),
    build(
        ListTaskPushNotificationConfigsResponse, configs=st.lists(webhooks, max_size=2), next_page_token=text
    ),
    build(GetExtendedAgentCardRequest, tenant=text),
)
"""All objects that an operation accepts or returns."""
