"""Agents: a model that calls tools until it has a final response, and the state machine of one turn."""
