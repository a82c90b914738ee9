"""Conversion between chunks, A2A messages and the formats of model APIs."""
