"""Removal of credentials from texts that leave the server, and escaping of control characters in log records."""
