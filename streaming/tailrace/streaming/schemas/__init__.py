"""JSON schemas: bounds, and values that have to match one."""
