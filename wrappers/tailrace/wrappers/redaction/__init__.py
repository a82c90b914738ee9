"""Removal of credentials from external error texts, and escaping of control characters in log records."""
