"""The protocol bindings: each translates its wire to calls of the engine, and nothing more."""
