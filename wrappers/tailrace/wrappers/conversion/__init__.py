"""Shared code of all providers' converters and clients: requests and conversations."""
