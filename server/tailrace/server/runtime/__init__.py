"""Running tasks: engine, turns, grouped writes, recovery, limits, and the operations of A2A."""
