"""A cluster of servers. Each server can serve, resume and cancel every task.

Each server is a *node*. PostgreSQL records the node that writes each task (`node`, `store`). Valkey or Redis, the *broker*,
transports the events of running tasks to other nodes (`broker`, `event_streams`, `task_follower`), and commands to the node that
runs a task (`node_commands`). docs/decisions/0009-many-nodes.md explains how events are written without loss or repetition.
"""
