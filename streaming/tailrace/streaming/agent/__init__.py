"""Agents: a model that calls tools until it has answered, and the state machine of one turn."""
