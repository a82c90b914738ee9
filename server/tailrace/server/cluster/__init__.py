"""Several servers as one: any of them serves, resumes and cancels any stream.

Each server is a *node*. PostgreSQL records which node writes which task (`node`, `store`). Valkey or Redis carries the events
of running tasks to the other nodes (`broker`, `event_streams`, `task_follower`) and requests to the node that runs a task
(`node_commands`). docs/decisions/0009-many-nodes.md explains how a write uses both, without loss or repetition if one fails.
"""
