"""Pages of other sites: which of them a browser lets call this server (CORS), and what it shows them."""

from collections.abc import Sequence

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from tailrace.server.auth.authentication import API_KEY_HEADER
from tailrace.server.protocols.openai import CONVERSATION_HEADER, TASK_HEADER

_SENT = (
    "A2A-Extensions",
    "A2A-Version",
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "Last-Event-ID",
    API_KEY_HEADER,
    CONVERSATION_HEADER,
)
_SHOWN = ("A2A-Extensions", "Retry-After", "WWW-Authenticate", CONVERSATION_HEADER, TASK_HEADER)


def allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Let pages of these origins call an application; nothing changes where there are none.

    Cookies are not among what they may send: a caller says who it is in a header, which no other page can do for it.

    Args:
        app: The application.
        origins: ``https://example.com``, each; ``*`` for every one.
    """
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=list(_SENT),
            expose_headers=list(_SHOWN),
            max_age=600,
        )
