"""The error classes: the class names the responsible party, attributes hold the facts."""

import pytest

from tailrace.wrappers import (
    ConfigurationError,
    ProtocolError,
    StoreError,
    TailraceError,
    UpstreamError,
    UpstreamFault,
)


@pytest.mark.parametrize("kind", [ConfigurationError, ProtocolError, StoreError, UpstreamError])
def test_every_error_is_of_the_one_tree_and_of_no_other_branch(kind: type[TailraceError]) -> None:
    branches = {ConfigurationError, ProtocolError, StoreError, UpstreamError}
    assert issubclass(kind, TailraceError)
    assert not any(issubclass(kind, other) for other in branches - {kind})


def test_an_upstream_error_carries_its_facts() -> None:
    error = UpstreamError(
        "rate limited",
        fault=UpstreamFault.STATUS,
        provider="openai",
        status=429,
        code="rate_limit_exceeded",
        retry_after=1.5,
        details={"error": {}},
    )
    assert error.message == "rate limited"
    assert error.fault is UpstreamFault.STATUS
    assert (error.provider, error.status, error.code) == ("openai", 429, "rate_limit_exceeded")
    assert (error.retry_after, error.details) == (1.5, {"error": {}})


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UpstreamError("gone", fault=UpstreamFault.TIMEOUT), "gone"),
        (UpstreamError("gone", fault=UpstreamFault.TIMEOUT, provider="groq"), "groq: gone"),
        (UpstreamError("no", fault=UpstreamFault.STATUS, status=500), "no (HTTP 500)"),
        (UpstreamError("no", fault=UpstreamFault.PROVIDER, code="x"), "no (x)"),
        (
            UpstreamError("no", fault=UpstreamFault.STATUS, provider="groq", status=429, code="x"),
            "groq: no (HTTP 429, x)",
        ),
    ],
)
def test_the_text_of_an_upstream_error_is_one_line_with_its_facts(error: UpstreamError, text: str) -> None:
    assert str(error) == text


def test_faults_are_words_that_programs_may_switch_on() -> None:
    assert {str(fault) for fault in UpstreamFault} == {
        "connection_failed",
        "timeout",
        "http_status",
        "provider_error",
        "stream_truncated",
        "invalid_stream",
        "event_too_large",
    }
