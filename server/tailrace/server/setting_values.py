"""Conversion and validation of the values of settings. Each function raises ValueError for an invalid value."""

import base64
import binascii
import json
import re
from typing import cast
from urllib.parse import urlsplit

from pydantic import SecretStr


def check_grpc_url(value: str) -> str:
    """Check the public address of gRPC."""
    parts = urlsplit(value if "://" in value else f"//{value}")
    try:
        known = parts.scheme in ("", "http", "https") and parts.hostname and (parts.scheme or parts.port)
    except ValueError:  # the port
        known = False
    if not known or parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("must be HOST:PORT, or https://HOST with a port or without")
    return value


def check_origins(values: tuple[str, ...]) -> tuple[str, ...]:
    """Check origins of web pages or agents."""
    for value in values:
        parts = urlsplit(value)
        if value != "*" and (
            not parts.scheme or not parts.netloc or value != f"{parts.scheme}://{parts.netloc}"
        ):
            raise ValueError(
                f"{value!r} is not an origin: write SCHEME://HOST or SCHEME://HOST:PORT, without a slash"
            )
    return values


def check_hosts(values: tuple[str, ...]) -> tuple[str, ...]:
    """Check values of the header ``Host``."""
    for value in values:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+|\[?[0-9A-Fa-f:.]+\]?", value):
            raise ValueError(
                f"{value!r} is not a host: write a name or an address, without a scheme, a port or a path"
            )
    return values


def check_schemes(values: tuple[str, ...]) -> tuple[str, ...]:
    """Check schemes of URLs."""
    for value in values:
        if value != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*", value):
            raise ValueError(f"{value!r} is not a URL scheme: write it in lower case, without a colon")
    return values


def read_list(value: object) -> object:
    """Convert one string, or a JSON list of strings, to a sequence."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return cast("object", json.loads(value))  # raises ValueError
    return (value,) if value.strip() else ()


def split_list(value: object) -> object:
    """Convert strings separated by commas, or a JSON list of strings, to a sequence."""
    if not isinstance(value, str) or value.lstrip().startswith("["):
        return read_list(value)
    return tuple(item for each in value.split(",") if (item := each.strip()))


def check_aliases(values: tuple[str, ...]) -> tuple[str, ...]:
    """Check aliases of models."""
    names: set[str] = set()
    for value in values:
        name, separator, target = (part.strip() for part in value.partition("="))
        if not name or not separator or (target and not all(target.partition(":"))):
            raise ValueError(f"{value!r} is not an alias: write NAME=PROVIDER:MODEL, or NAME= for the agent")
        if name in names:
            raise ValueError(f"the alias {name!r} occurs twice: remove one")
        names.add(name)
    return values


def check_fallbacks(values: tuple[str, ...]) -> tuple[str, ...]:
    """Check fallback models."""
    for value in values:
        if not all(split_fallback(value)[0].partition(":")):
            raise ValueError(f"{value!r} is not a model: write PROVIDER:MODEL or PROVIDER:MODEL@BASE_URL")
    return values


def split_fallback(value: str) -> tuple[str, str | None]:
    """Split an item of `Settings.fallback` into the model and the base URL (None if the item has no base URL)."""
    match = re.fullmatch(r"(.*?)@(https?://.*)", value)
    return (match[1], match[2]) if match else (value, None)


def check_grpc_tls(values: tuple[str, ...]) -> tuple[str, ...]:
    """Check the number of TLS files."""
    if len(values) not in (0, 2):
        raise ValueError("must name two files: CERTIFICATE,KEY")
    return values


def check_webhook_secret(value: SecretStr) -> SecretStr:
    """Check the secrets of a webhook."""
    for each in value.get_secret_value().split(","):
        try:
            size = len(base64.b64decode(each.strip().removeprefix("whsec_"), validate=True))
        except binascii.Error:
            size = 0
        if not each.strip().startswith("whsec_") or not 24 <= size <= 64:
            raise ValueError(
                "must be whsec_ and 24 to 64 bytes as base64 (create one with: echo whsec_$(openssl rand -base64 32))"
            )
    return value
