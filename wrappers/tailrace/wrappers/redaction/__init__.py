"""Removal of credentials from error texts of other systems, and escaping of control characters in log records."""
