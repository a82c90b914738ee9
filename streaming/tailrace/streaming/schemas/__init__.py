"""JSON schemas: limits for the schemas of callers, and validation of values against a schema."""
