"""Many servers as one: any of them serves, resumes and cancels any stream.

Each server is a *node*. PostgreSQL says which node writes which task (`node`, `database`, `store`); Valkey or Redis
carries the events of tasks that are worked on to the other nodes (`broker`, `streams`, `following`), and what is asked
of a node that runs a task (`commands`). How the two halves of a write are put together, and why no failure of either
loses or doubles anything, stands in docs/decisions/0009-many-nodes.md.
"""
