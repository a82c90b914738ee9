"""Callers who are known by a bearer token (JWT) that somebody else issued."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import jwt

from tailrace.server.auth import Authenticator, AuthError, Credentials, Identity
from tailrace.server.jwks import ALGORITHMS, IssuerKeys

_CHALLENGE = 'Bearer realm="tailrace"'


class JwtBearer(Authenticator):
    """Knows callers by a signed token (RFC 7519) of an issuer that publishes its keys (RFC 7517).

    Args:
        jwks_url: Where the issuer's keys are; `tailrace.server.jwks` says when they are fetched.
        issuer: Who must have issued the token; empty for anybody whose keys they are.
        audience: Whom the token must be for; empty for anybody.
        scopes: What the token must allow, all of it (``scope`` or ``scp``).

    Raises:
        ConfigurationError: The address is not one of HTTP.
    """

    def __init__(
        self, jwks_url: str, *, issuer: str = "", audience: str = "", scopes: Sequence[str] = ()
    ) -> None:
        self._keys = IssuerKeys(jwks_url)
        self._issuer = issuer
        self._audience = audience
        self._scopes = tuple(scopes)

    async def authenticate(self, credentials: Credentials) -> Identity:
        """The token's subject, with its claims; `OverloadedError` when the issuer's keys cannot be had."""
        token = credentials.bearer
        if not token:
            raise AuthError("a bearer token is required in Authorization", challenge=_CHALLENGE)
        try:
            key = await self._keys.find(_key_id(token))
            if key is None:
                raise jwt.InvalidTokenError("its issuer publishes no key of the id that it names")
            claims = self._claims(token, key)
        except jwt.PyJWTError as error:
            raise _not_valid(str(error)) from None
        except (TypeError, ValueError, ArithmeticError, RecursionError):
            # What the library trips over: a signature of another kind than the key is, values beyond all measure.
            raise _not_valid("it cannot be read, or its signature is not of its key's kind") from None
        missing = set(self._scopes) - _scopes_of(claims)
        if missing:
            raise AuthError(
                f"the bearer token does not allow {' '.join(sorted(missing))}",
                challenge=f'Bearer error="insufficient_scope", scope="{" ".join(self._scopes)}"',
                forbidden=True,
                presented=True,
            )
        return Identity(f"{claims.get('iss', '')}|{claims['sub']}", claims)

    def schemes(self) -> Mapping[str, Any]:
        """HTTP bearer authentication with a JWT."""
        return {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT"}}}

    def running(self) -> AbstractAsyncContextManager[None]:
        """Keys that grow old are fetched while nobody waits."""
        return self._keys.running()

    def _claims(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        return jwt.decode(
            token,
            key.key,
            algorithms=ALGORITHMS,
            audience=self._audience or None,
            issuer=self._issuer or None,
            options={"require": ["exp", "sub"], "verify_aud": bool(self._audience)},
        )


def _key_id(token: str) -> str:
    """The id of the key that a token says it is signed with: nothing else of it is looked at before the key is there.

    Raises:
        PyJWTError: It is no token, names no key, or is signed in a way that is not taken.
    """
    header: Mapping[str, Any] = jwt.get_unverified_header(token)
    kid, algorithm = header.get("kid"), header.get("alg")
    if not isinstance(kid, str) or not kid:
        raise jwt.InvalidTokenError("it does not name its key")
    if algorithm not in ALGORITHMS:
        raise jwt.InvalidAlgorithmError("The specified alg value is not allowed")
    return kid


def _not_valid(why: str) -> AuthError:
    challenge = f'{_CHALLENGE}, error="invalid_token"'
    return AuthError(f"the bearer token is not valid: {why}", challenge=challenge, presented=True)


def _scopes_of(claims: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()
    for name in ("scope", "scp"):
        value = claims.get(name)
        if isinstance(value, str):
            found |= set(value.split())
        elif isinstance(value, list):
            found |= {str(each) for each in value}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return found
