"""Authentication by bearer tokens (JWT) of an external issuer."""

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import jwt

from tailrace.server.auth.authentication import Authenticator, Credentials, Identity
from tailrace.server.auth.jwks import ALGORITHMS, IssuerKeys
from tailrace.server.runtime.auth_error import AuthError
from tailrace.wrappers.redaction.log_escaping import printable

_CHALLENGE = 'Bearer realm="tailrace"'
_MAX_REASON = 200  # characters
_MAX_NAME = 1024  # characters of an issuer or a subject

logger = logging.getLogger("tailrace.server")


class JwtBearer(Authenticator):
    """Authenticates callers by signed tokens (JWT, RFC 7519).

    Args:
        jwks_url: The URL of the issuer's keys.
        issuer: The required value of the claim ``iss``; empty to accept all issuers.
        audience: The required value of the claim ``aud``; empty to accept all audiences.
        scopes: The required scopes, in the claims ``scope`` and ``scp``.

    Raises:
        ConfigurationError: The URL is not an HTTP URL.
    """

    def __init__(
        self, jwks_url: str, *, issuer: str = "", audience: str = "", scopes: Sequence[str] = ()
    ) -> None:
        self._keys = IssuerKeys(jwks_url)
        self._issuer = issuer
        self._audience = audience
        self._scopes = tuple(scopes)

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return the subject and the claims of the token."""
        token = credentials.bearer
        if not token:
            raise AuthError("a bearer token is required in Authorization", challenge=_CHALLENGE)
        try:
            key = await self._keys.find(*_key_of(token))
            if key is None:
                raise jwt.InvalidTokenError(
                    "its issuer publishes no key with the key id (kid) and the algorithm (alg) of the token"
                )
            claims = self._claims(token, key)
        except jwt.PyJWTError as error:
            raise _not_valid(str(error)) from None
        except (TypeError, ValueError, ArithmeticError, RecursionError):
            # Raised for values that are out of range, and for a signature that does not fit the type of the key.
            raise _not_valid("it cannot be read, or its signature does not fit the type of its key") from None
        missing = set(self._scopes) - _scopes_of(claims)
        if missing:
            raise AuthError(
                f"the bearer token does not allow {' '.join(sorted(missing))}",
                challenge=f'Bearer error="insufficient_scope", scope="{" ".join(self._scopes)}"',
                forbidden=True,
                presented=True,
            )
        return Identity(_user(claims), claims)

    def schemes(self) -> Mapping[str, Any]:
        """Return the security scheme for bearer authentication with a JWT."""
        return {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT"}}}

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Log which claims are not checked, and fetch keys in the background before they expire."""
        warning = unchecked_claims(self._issuer, self._audience)
        if warning:
            logger.warning("%s", warning)
        async with self._keys.running():
            yield

    def _claims(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        return jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            audience=self._audience or None,
            issuer=self._issuer or None,
            options={"require": ["exp", "sub"], "verify_aud": bool(self._audience)},
        )


def unchecked_claims(issuer: str, audience: str) -> str:
    """Return a warning about claims that are not checked; empty if the issuer and the audience are configured."""
    missing = [
        name
        for name, value in (
            ("issuer", issuer),
            ("audience", audience),
        )
        if not value
    ]
    if not missing:
        return ""
    return (
        "every token that is signed with a key of TAILRACE_CALLER_JWT (jwks_url) is accepted, including tokens that were issued "
        f"for another service: set its {' and '.join(missing)} too"
    )


def _user(claims: Mapping[str, Any]) -> str:
    """Return the user name for a token. It contains the issuer, so that the names of different issuers are different.

    Raises:
        AuthError: The issuer or the subject cannot be part of a name.
    """
    issuer, subject = claims.get("iss", ""), claims["sub"]
    for name, value in (("issuer", issuer), ("subject", subject)):
        if not isinstance(value, str) or not value.isprintable() or len(value) > _MAX_NAME:
            raise _not_valid(f"its {name} is no printable text of at most {_MAX_NAME} characters")
    if "|" in issuer:
        raise _not_valid("its issuer contains the character '|'")  # the separator between issuer and subject
    return f"{issuer}|{subject}"


def _key_of(token: str) -> tuple[str, str]:
    """Return the key id and the algorithm in a token's header.

    Raises:
        PyJWTError: The token is not valid, or its algorithm is not accepted.
    """
    header: Mapping[str, Any] = jwt.get_unverified_header(token)
    kid, algorithm = header.get("kid"), header.get("alg")
    if not isinstance(kid, str) or not kid:
        raise jwt.InvalidTokenError("it has no key id (kid)")
    if algorithm not in ALGORITHMS:
        raise jwt.InvalidAlgorithmError("The specified alg value is not allowed")
    return kid, cast("str", algorithm)


def _not_valid(reason: str) -> AuthError:
    challenge = f'{_CHALLENGE}, error="invalid_token"'
    # PyJWT's messages may contain unverified values of the token.
    return AuthError(
        f"the bearer token is not valid: {printable(reason, _MAX_REASON)}",
        challenge=challenge,
        presented=True,
    )


def _scopes_of(claims: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()
    for name in ("scope", "scp"):
        value = claims.get(name)
        if isinstance(value, str):
            found |= set(value.split())
        elif isinstance(value, list):
            found |= {str(each) for each in value}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return found
