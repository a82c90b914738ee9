"""Cross-origin requests (CORS)."""

from collections.abc import Sequence

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from tailrace.server.auth.authentication import API_KEY_HEADER
from tailrace.server.protocols.openai import CONVERSATION_HEADER, TASK_HEADER

_REQUEST_HEADERS = (
    "A2A-Extensions",
    "A2A-Version",
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "Last-Event-ID",
    API_KEY_HEADER,
    CONVERSATION_HEADER,
)
_EXPOSED_HEADERS = ("A2A-Extensions", "Retry-After", "WWW-Authenticate", CONVERSATION_HEADER, TASK_HEADER)


def allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Allow cross-origin requests from pages with these origins; ``*`` stands for all origins.

    Browsers send no cookies with these requests. Pages must send the caller's credentials in a header.
    """
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=list(_REQUEST_HEADERS),
            expose_headers=list(_EXPOSED_HEADERS),
            max_age=600,
        )
