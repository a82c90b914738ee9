"""An agent inside your FastAPI application. The users of the application are the callers of the agent, with the same tokens.

OPENAI_API_KEY=… uvicorn --app-dir examples own_app:app
curl http://127.0.0.1:8000/me -H 'Authorization: Bearer token-of-ada'
tailrace ask http://127.0.0.1:8000/agent "Name a river." --token token-of-ada
"""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tailrace.server import Settings, create_router
from tailrace.server.auth import Authenticator, AuthError, Credentials, Identity

USERS = {"token-of-ada": "ada", "token-of-ben": "ben"}
"""The application's users by token: a table here, sessions or a token issuer in real applications."""


def current_user(bearer: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> str:
    """Authenticate requests to the application's own routes."""
    if (user := USERS.get(bearer.credentials)) is None:
        raise HTTPException(401, "who are you?")
    return user


class SameUsers(Authenticator):
    """Authenticates requests to the agent: the same users, by the same tokens. Each user has separate tasks."""

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return the user of the token."""
        user = USERS.get(credentials.bearer)
        if user is None:
            raise AuthError("who are you?", challenge="Bearer", presented=bool(credentials.bearer))
        return Identity(user)

    def schemes(self) -> Mapping[str, Any]:
        """Return the security schemes for the agent card."""
        return {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}


app = FastAPI()


@app.get("/me")
def me(user: Annotated[str, Depends(current_user)]) -> dict[str, str]:
    """A route of the application itself."""
    return {"user": user}


settings = Settings(model="openai:gpt-5-mini")
app.include_router(create_router(settings, authenticator=SameUsers()), prefix="/agent")
