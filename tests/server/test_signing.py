"""Signatures of the card, verified by hand and by the official SDK, over the card as it was served."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from a2a.types import a2a_pb2
from a2a.utils.signing import InvalidSignaturesError, create_signature_verifier
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils
from google.protobuf.json_format import ParseDict
from jwt import PyJWK, PyJWKSet

from support.http_json import HttpJson
from support.rpc import Rpc
from support.serving import serving
from tailrace.server import Settings, Turn, create_app
from tailrace.server.auth import ApiKeys
from tailrace.server.card import build_card
from tailrace.server.signing import CardSigner, SigningKey, canonical_forms, create_signers, sign_card
from tailrace.streaming import Update
from tailrace.streaming.a2a.models import AgentCard, AgentExtension, Message
from tailrace.wrappers import ConfigurationError

SETTINGS = Settings(store="sqlite://", public_url="https://agents.example/")
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
KEYS: dict[str, SigningKey] = {
    "RS256": RSA,
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "ES512": ec.generate_private_key(ec.SECP521R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
CARD = "/.well-known/agent-card.json"


async def nothing(turn: Turn) -> AsyncIterator[Update | Message]:
    return
    yield


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def verify(key: Any, signature: dict[str, Any], payload: bytes) -> None:
    """What RFC 7515 says, with nothing of what signed."""
    signed = f"{signature['protected']}.{base64.urlsafe_b64encode(payload).decode().rstrip('=')}".encode()
    raw, public = decoded(signature["signature"]), key.public_key()
    if isinstance(key, rsa.RSAPrivateKey):
        public.verify(raw, signed, padding.PKCS1v15(), hashes.SHA256())
    elif isinstance(key, ed25519.Ed25519PrivateKey):
        public.verify(raw, signed)
    else:
        size = (key.curve.key_size + 7) // 8
        numbers = (int.from_bytes(raw[:size]), int.from_bytes(raw[size:]))
        assert len(raw) == 2 * size
        digest = {32: hashes.SHA256(), 48: hashes.SHA384(), 66: hashes.SHA512()}[size]
        public.verify(utils.encode_dss_signature(*numbers), signed, ec.ECDSA(digest))


def canonical(card: dict[str, Any]) -> bytes:
    """RFC 8785 for a card of texts, flags and whole numbers: sorted, and nothing between."""
    facts = {name: value for name, value in card.items() if name != "signatures"}
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def check_with_sdk(card: dict[str, Any], keys: PyJWKSet) -> None:
    """As a client that uses the official SDK.

    Raises:
        InvalidSignaturesError: No signature is right.
    """

    def find(kid: str | None, jku: str | None) -> PyJWK:
        return keys[kid or ""]

    verifier = create_signature_verifier(find, list(KEYS))
    verifier(ParseDict(card, a2a_pb2.AgentCard(), ignore_unknown_fields=True))


@pytest.mark.parametrize("algorithm", KEYS)
async def test_the_card_that_is_served_is_signed(algorithm: str) -> None:
    signer = CardSigner(KEYS[algorithm], "k1", jku="https://keys.example/jwks.json")
    app = create_app(SETTINGS, handler=nothing, card_signers=(signer,))
    async with serving(app) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        card = await http.ok("GET", CARD)
        keys = PyJWKSet.from_dict(await http.ok("GET", "/.well-known/jwks.json"))
        again, old = await http.ok("GET", CARD), await http.ok("GET", "/.well-known/agent.json")
    [signature] = card["signatures"]
    assert json.loads(decoded(signature["protected"])) == {
        "alg": algorithm,
        "typ": "JOSE",
        "kid": "k1",
        "jku": "https://keys.example/jwks.json",
    }
    verify(KEYS[algorithm], signature, canonical(card))
    with pytest.raises(InvalidSignature):
        verify(KEYS[algorithm], signature, canonical({**card, "name": "another"}))
    check_with_sdk(card, keys)
    with pytest.raises(InvalidSignaturesError):
        check_with_sdk({**card, "name": "another"}, keys)
    # Else no cache would keep it.
    assert again == card
    assert "signatures" not in old


async def test_a_card_of_an_agent_that_asks_for_keys_is_right_in_both_readings() -> None:
    """A requirement without scopes is there for the specification, and is not for the SDK."""
    signer = CardSigner(RSA, "k1")
    app = create_app(
        SETTINGS, handler=nothing, authenticator=ApiKeys({"alice": "key"}), card_signers=(signer,)
    )
    async with serving(app) as url, Rpc(url) as rpc:
        card = await HttpJson(rpc).ok("GET", CARD)
    assert card["securityRequirements"] == [{"schemes": {"apiKey": {"list": []}}}]
    first, _ = card["signatures"]
    by_specification: dict[str, Any] = {**card, "securityRequirements": [{"schemes": {"apiKey": {}}}]}
    verify(RSA, first, canonical(by_specification))
    check_with_sdk(card, PyJWKSet.from_dict({"keys": [signer.public_key()]}))


async def test_several_keys_sign_and_the_extended_card_is_signed_too() -> None:
    signers = [CardSigner(key, f"k-{name}") for name, key in KEYS.items()]
    extended = build_card(SETTINGS, "https://agents.example/", has_extended=True)
    app = create_app(SETTINGS, handler=nothing, card_signers=signers, extended_card=extended)
    async with serving(app) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        cards = [await http.ok("GET", CARD), await http.ok("GET", "/extendedAgentCard")]
        cards.append(await rpc.result("GetExtendedAgentCard", {}))
        published = (await http.ok("GET", "/.well-known/jwks.json"))["keys"]
    for card in cards:
        assert len(card["signatures"]) == len(KEYS)
        for signature, key in zip(card["signatures"], KEYS.values(), strict=True):
            verify(key, signature, canonical(card))
    assert [(key["kid"], key["alg"], key["use"]) for key in published] == [
        (f"k-{name}", name, "sig") for name in KEYS
    ]
    assert not any("d" in key for key in published)


async def test_nothing_is_signed_and_no_keys_are_there_without_being_asked_for() -> None:
    async with serving(create_app(SETTINGS, handler=nothing)) as url, Rpc(url) as rpc:
        assert "signatures" not in await HttpJson(rpc).ok("GET", CARD)
        assert (await HttpJson(rpc).ask("GET", "/.well-known/jwks.json"))[0] == 404


# --- the canonical form -----------------------------------------------------------------------------------------


def test_the_canonical_form_is_that_of_the_specifications_example() -> None:
    card: dict[str, Any] = {
        "name": "Example Agent",
        "capabilities": {"streaming": False, "pushNotifications": False, "extensions": []},
        "signatures": [{"protected": "x", "signature": "y"}],
    }
    form = b'{"capabilities":{"pushNotifications":false,"streaming":false},"name":"Example Agent"}'
    assert canonical_forms(card) == [form]


def test_a_card_in_any_script_has_one_form() -> None:
    """Sorted by UTF-16 code units, and written as it is but for quotes and controls."""
    card = build_card(Settings(agent_name='Grüße, "日本" \u2028'), "https://agents.example/")
    params = {"\ud83d\ude00": 1.0, "\ufb33": 1e30, "a": [0.1, -0.0]}
    speaking = card.model_copy(
        update={
            "capabilities": card.capabilities.model_copy(
                update={"extensions": (AgentExtension(uri="urn:x", params=params),)}
            )
        }
    )
    [form] = canonical_forms(speaking.to_dict())
    assert 'Grüße, \\"日本\\" \u2028'.encode() in form
    assert '"params":{"a":[0.1,0],"\U0001f600":1,"\ufb33":1e+30}'.encode() in form
    assert AgentCard.model_validate_json(form).name == speaking.name


def test_a_card_without_a_canonical_form_is_not_signed() -> None:
    extension = AgentExtension(uri="urn:x", params={"n": 2**60})
    card = build_card(SETTINGS, "https://agents.example/")
    capabilities = card.capabilities.model_copy(update={"extensions": (extension,)})
    with pytest.raises(ConfigurationError, match="cannot be signed"):
        sign_card(card.model_copy(update={"capabilities": capabilities}), [CardSigner(RSA, "k1")])


# --- settings ---------------------------------------------------------------------------------------------------


def pem(key: SigningKey, password: bytes | None = None) -> bytes:
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def settings(keys: str, **values: str) -> Settings:
    return SETTINGS.model_copy(update={"card_signing_keys": keys, **values})


def test_the_settings_name_key_files(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_bytes(pem(KEYS["ES256"]))
    (tmp_path / "b.pem").write_bytes(pem(RSA))
    signers = create_signers(settings(f"k1:{tmp_path}/a.pem, k2:{tmp_path}/b.pem"))
    headers = [json.loads(decoded(signer.sign({"name": "x"})[0]["protected"])) for signer in signers]
    assert [(header["kid"], header["alg"]) for header in headers] == [("k1", "ES256"), ("k2", "RS256")]
    assert {header["jku"] for header in headers} == {"https://agents.example/.well-known/jwks.json"}
    elsewhere = settings(f"k1:{tmp_path}/a.pem", card_signing_jku="https://keys.example/")
    assert json.loads(decoded(create_signers(elsewhere)[0].sign({})[0]["protected"]))["jku"] == (
        "https://keys.example/"
    )
    assert create_signers(SETTINGS) == ()


def test_what_cannot_sign_is_refused_by_name(tmp_path: Path) -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    curve = ec.generate_private_key(ec.SECP256K1())
    (tmp_path / "weak.pem").write_bytes(pem(weak))
    (tmp_path / "curve.pem").write_bytes(pem(curve))
    (tmp_path / "locked.pem").write_bytes(pem(RSA, b"secret"))
    (tmp_path / "text.pem").write_bytes(b"hello")
    wrong = [
        ("k1", "KID:FILE"),
        (":a.pem", "KID:FILE"),
        (f"k1:{tmp_path}/none.pem", "No such file"),
        (f"k1:{tmp_path}/text.pem", "no private key"),
        (f"k1:{tmp_path}/locked.pem", "without a password"),
        (f"k1:{tmp_path}/weak.pem", "2048 bits"),
        (f"k1:{tmp_path}/curve.pem", "P-256"),
    ]
    for keys, reason in wrong:
        with pytest.raises(ConfigurationError, match=reason):
            create_signers(settings(keys))
    with pytest.raises(ConfigurationError, match="TAILRACE_PUBLIC_URL"):
        create_signers(Settings(card_signing_keys="k1:a.pem"))
    with pytest.raises(ConfigurationError, match="kid"):
        CardSigner(RSA, "")
