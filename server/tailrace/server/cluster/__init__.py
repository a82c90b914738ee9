"""A cluster of servers. Each server can serve and resume the stream of every task, and cancel every task.

Each server is a *node*. PostgreSQL records, for each task, the node that writes the task (`node`, `store`). Valkey or Redis, the
*broker*, transports the events of running tasks to other nodes (`broker`, `event_streams`, `task_follower`), and commands to the
node that runs a task (`node_commands`). docs/decisions/0009-many-nodes.md explains how events are written to PostgreSQL and the
broker without loss or repetition.
"""
