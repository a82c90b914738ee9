"""JSON schemas: limits for the schemas that callers send, and validation of values against a schema."""
