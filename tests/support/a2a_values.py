"""Objects of A2A 1.0, and errors of invalid ones."""

from typing import Any

import pytest
from hypothesis import strategies as st
from pydantic import ValidationError

from tailrace.streaming.a2a.models import A2AModel, Part

text = st.text(max_size=12)
name = st.text(min_size=1, max_size=8)
# Integers stay below 2**53: the official objects keep every number as a double.
json_value = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
metadata = st.dictionaries(text, json_value, max_size=2)

about_a_part = {"metadata": metadata, "filename": text, "media_type": text}
parts = st.one_of(
    st.builds(Part, text=text, **about_a_part),
    st.builds(Part, raw=st.binary(max_size=8), **about_a_part),
    st.builds(Part, url=name, **about_a_part),
    st.builds(Part, data=json_value, **about_a_part),
)

MESSAGE: dict[str, Any] = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
ARTIFACT: dict[str, Any] = {"artifactId": "a1", "parts": [{"text": "hi"}]}
STATUS: dict[str, Any] = {"state": "TASK_STATE_WORKING"}
CARD: dict[str, Any] = {
    "name": "Recipes",
    "description": "Knows recipes",
    "version": "1.2.0",
    "supportedInterfaces": [
        {"url": "https://a.example/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
    "capabilities": {},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "cook", "name": "Cook", "description": "Finds a recipe", "tags": ["food"]}],
}

SEND: dict[str, Any] = {
    "message": MESSAGE
    | {"taskId": "t1", "contextId": "c1", "referenceTaskIds": ["t0"], "extensions": ["urn:x"]},
    "configuration": {
        "acceptedOutputModes": ["text/plain"],
        "historyLength": 0,
        "returnImmediately": True,
        "taskPushNotificationConfig": {
            "id": "p1",
            "taskId": "t1",
            "url": "https://hook.example/",
            "token": "opaque",
            "authentication": {"scheme": "Bearer", "credentials": "tok"},
            "tenant": "acme",
        },
    },
    "metadata": {"a": 1},
    "tenant": "acme",
}


def why(model: type[A2AModel], value: object) -> list[tuple[tuple[int | str, ...], str]]:
    """Location and reason of a validation error."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(value)
    return [(error["loc"], error["msg"]) for error in caught.value.errors()]
