"""Signatures of the card, verified independently and with the official SDK, over the card as served."""

import base64
import json
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

from support.agents import nothing
from support.http_json import HttpJson
from support.live_server import serving
from support.rpc import Rpc
from tailrace.server import Settings, create_app
from tailrace.server.auth.authentication import ApiKeys
from tailrace.server.protocols.a2a.card import build_card
from tailrace.server.protocols.a2a.card_signing import (
    CardSigner,
    SigningKey,
    canonical_forms,
    create_signers,
    sign_card,
)
from tailrace.server.settings import CardSettings
from tailrace.streaming.a2a.models import AgentCard, AgentExtension
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


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def verify(key: Any, signature: dict[str, Any], payload: bytes) -> None:
    """Verify by RFC 7515, independently of the signing code."""
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
    """Serialise by RFC 8785, for cards of strings, booleans and integers: sorted, without whitespace."""
    facts = {name: value for name, value in card.items() if name != "signatures"}
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def check_with_sdk(card: dict[str, Any], keys: PyJWKSet) -> None:
    """Verify with the official SDK.

    Raises:
        InvalidSignaturesError: No signature is valid.
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
    # Otherwise no cache could store it.
    assert again == card
    assert "signatures" not in old


async def test_a_card_of_an_agent_that_requires_keys_is_valid_in_both_versions() -> None:
    """A requirement without scopes is present in the specification's form, and absent in the SDK's."""
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


async def test_by_default_cards_are_not_signed_and_no_keys_are_served() -> None:
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
    """Sorted by UTF-16 code units; only quotes and control characters are escaped."""
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


def settings(keys: dict[str, str], jku: str = "") -> Settings:
    return SETTINGS.model_copy(update={"card": CardSettings(signing_keys=keys, signing_jku=jku)})


def test_the_settings_name_key_files(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_bytes(pem(KEYS["ES256"]))
    (tmp_path / "b.pem").write_bytes(pem(RSA))
    signers = create_signers(settings({"k1": f"{tmp_path}/a.pem", "k2": f"{tmp_path}/b.pem"}))
    headers = [json.loads(decoded(signer.sign({"name": "x"})[0]["protected"])) for signer in signers]
    assert [(header["kid"], header["alg"]) for header in headers] == [("k1", "ES256"), ("k2", "RS256")]
    assert {header["jku"] for header in headers} == {"https://agents.example/.well-known/jwks.json"}
    other_settings = settings({"k1": f"{tmp_path}/a.pem"}, "https://keys.example/")
    assert json.loads(decoded(create_signers(other_settings)[0].sign({})[0]["protected"]))["jku"] == (
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
        ("none", "No such file"),
        ("text", "no private key"),
        ("locked", "without a password"),
        ("weak", "2048 bits"),
        ("curve", "P-256"),
    ]
    for name, reason in wrong:
        with pytest.raises(ConfigurationError, match=reason):
            create_signers(settings({"k1": f"{tmp_path}/{name}.pem"}))
    with pytest.raises(ConfigurationError, match="TAILRACE_PUBLIC_URL"):
        create_signers(Settings(card=CardSettings(signing_keys={"k1": "a.pem"})))
    with pytest.raises(ConfigurationError, match="kid"):
        CardSigner(RSA, "")
