"""Signatures of the agent card (A2A 1.0, section 8.4). They prove that the card was not changed in transit.

A signature is a JSON Web Signature (RFC 7515) of the card in the canonical JSON form of RFC 8785, without ``signatures`` and
members with default values.

The canonical form of the specification includes empty protobuf messages, for example security requirements without scopes. The
form of the official Python SDK omits them. A card with such a message therefore gets one signature of each form.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import rfc8785
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from fastapi import APIRouter, Request, Response
from jwt import api_jws, api_jwt
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tailrace.server.http.caching import cached_response
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.models import AgentCard
from tailrace.wrappers import ConfigurationError

KEYS_PATH = "/.well-known/jwks.json"
"""The path of the public keys."""

SigningKey = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey

_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_MIN_RSA_BITS = 2048
_MAX_CACHED_SIGNATURES = 64  # the server may have a card for each of its URLs


class CardSigner:
    """Signs cards with one key.

    Args:
        key: The private key. Its type determines the algorithm (RS256, ES256, ES384, ES512, EdDSA).
        kid: The id by which verifiers find the public key.
        jku: The URL of the JSON Web Key Set (RFC 7517) with the public key; may be empty.

    Raises:
        ConfigurationError: The type of the key is not supported, or the key has no id.
    """

    def __init__(self, key: SigningKey, kid: str, *, jku: str = "") -> None:
        if not kid:
            raise ConfigurationError("a key that signs the card needs an id (kid)")
        self.kid = kid
        self._key = key
        self._algorithm = _algorithm(key)
        self._header = {"typ": "JOSE", "kid": kid, **({"jku": jku} if jku else {})}
        # Some algorithms create a different signature each time. Without a cache, HTTP caches could not store the card.
        self._sign = lru_cache(_MAX_CACHED_SIGNATURES)(self._create_signature)

    def sign(self, card: Mapping[str, Any]) -> list[dict[str, str]]:
        """Return one signature of a card for each canonical form.

        Args:
            card: The JSON of the card in A2A 1.0. Its ``signatures`` are ignored.

        Raises:
            ConfigurationError: The card has no canonical form, because JSON parsers interpret one of its numbers differently.
        """
        return [self._sign(payload) for payload in canonical_forms(card)]

    def token(self, claims: Mapping[str, object]) -> str:
        """Return a signed JWT (RFC 7519) with these claims."""
        header = {name: value for name, value in self._header.items() if name != "typ"}
        return api_jwt.encode(dict(claims), self._key, self._algorithm, headers=header)

    @property
    def keys_url(self) -> str:
        """The URL of the public keys; a path on this server if no URL is configured."""
        return self._header.get("jku", KEYS_PATH)

    def public_key(self) -> dict[str, Any]:
        """Return the public key as a JSON Web Key."""
        if isinstance(self._key, RSAPrivateKey):
            written = RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        elif isinstance(self._key, EllipticCurvePrivateKey):
            written = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        else:
            written = OKPAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return {
            **{name: value for name, value in written.items() if name != "key_ops"},
            "kid": self.kid,
            "use": "sig",
            "alg": self._algorithm,
        }

    def _create_signature(self, payload: bytes) -> dict[str, str]:
        token = api_jws.encode(payload, self._key, self._algorithm, headers=dict(self._header))
        protected, _, signature = token.split(".")
        return {"protected": protected, "signature": signature}


def create_signers(settings: Settings) -> tuple[CardSigner, ...]:
    """Return the configured signers.

    Raises:
        ConfigurationError: A key cannot be read or used, or ``public_url`` is not set. The card would then contain the URL of the
            request, which must not be signed.
    """
    card = settings.card
    if not card.signing_keys:
        return ()
    if not settings.public_url:
        raise ConfigurationError("TAILRACE_CARD: signing_keys require TAILRACE_PUBLIC_URL")
    jku = card.signing_jku or settings.public_url.rstrip("/") + KEYS_PATH
    return tuple(_load_signer(kid, path, jku) for kid, path in card.signing_keys.items())


def sign_card(card: AgentCard, signers: Iterable[CardSigner]) -> AgentCard:
    """Return the card with the signatures of all signers, and without earlier signatures."""
    fields = card.to_dict()
    signatures = tuple(signature for signer in signers for signature in signer.sign(fields))
    return card.model_copy(update={"signatures": signatures})


def canonical_forms(card: Mapping[str, Any]) -> list[bytes]:
    """Return the canonical form of a card according to the specification, and that of the SDK if it differs.

    Raises:
        ConfigurationError: The card has no canonical form.
    """
    fields = {name: value for name, value in card.items() if name != "signatures"}
    try:
        forms = [rfc8785.dumps(_without_empty_lists(fields)), rfc8785.dumps(_without_empties(fields))]
    except rfc8785.CanonicalizationError as error:
        raise ConfigurationError(f"the card cannot be signed: {error}") from None
    return list(dict.fromkeys(forms))


def add_keys_to(router: APIRouter, signers: Sequence[CardSigner]) -> None:
    """Add the route for the public keys to a router, if there are signers."""
    if not signers:
        return
    body = json.dumps({"keys": [signer.public_key() for signer in signers]}).encode()

    async def keys(request: Request) -> Response:
        return cached_response(request, body)

    router.add_api_route(KEYS_PATH, keys, methods=["GET"], include_in_schema=False)


def _without_empty_lists(value: Any) -> Any:
    """Remove members that are empty lists. They are equivalent to absent members (section 8.4.1)."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        return {name: _without_empty_lists(member) for name, member in members if member != []}
    if isinstance(value, list | tuple):
        return [_without_empty_lists(item) for item in cast("Sequence[Any]", value)]
    return value


def _without_empties(value: Any) -> Any:
    """Remove empty values at any depth. Return None if none remains."""
    if isinstance(value, dict):
        members = {name: _without_empties(member) for name, member in cast("dict[str, Any]", value).items()}
        return {name: member for name, member in members.items() if member is not None} or None
    if isinstance(value, list | tuple):
        items = [_without_empties(item) for item in cast("Sequence[Any]", value)]
        return [item for item in items if item is not None] or None
    return None if value == "" else value


def _load_signer(kid: str, path: str, jku: str) -> CardSigner:
    try:
        key = load_pem_private_key(Path(path).read_bytes(), password=None)
    except OSError as error:
        raise ConfigurationError(f"TAILRACE_CARD: signing_keys: {path}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise ConfigurationError(
            f"TAILRACE_CARD: signing_keys: {path} holds no private key in PEM form without a password"
        ) from None
    return CardSigner(cast("SigningKey", key), kid, jku=jku)


def _algorithm(key: object) -> str:
    if isinstance(key, RSAPrivateKey) and key.key_size >= _MIN_RSA_BITS:
        return "RS256"
    if isinstance(key, EllipticCurvePrivateKey) and key.curve.name in _CURVES:
        return _CURVES[key.curve.name]
    if isinstance(key, Ed25519PrivateKey):
        return "EdDSA"
    raise ConfigurationError(
        f"a card is signed with an RSA key of {_MIN_RSA_BITS} bits or more, or one of P-256, P-384, P-521 or Ed25519"
    )
