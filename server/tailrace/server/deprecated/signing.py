"""Deprecated: import from `tailrace.server.protocols.a2a.card_signing`."""

from tailrace.server.protocols.a2a.card_signing import CardSigner

__all__ = ("CardSigner",)
