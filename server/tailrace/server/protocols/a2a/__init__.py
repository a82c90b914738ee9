"""The bindings of A2A (JSON-RPC, HTTP+JSON, gRPC), and the agent card."""
