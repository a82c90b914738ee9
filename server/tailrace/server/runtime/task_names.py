"""The ids of tasks that callers name themselves, as clients of A2A 0.1 do.

A name is unique to its owner, and an id to the store. The id of a named task is the name and an identifier that is derived
from the secret of the installation, so that no other caller can compute it.
"""

from collections.abc import Iterator
from hashlib import sha256

from tailrace.server.store.secret_keys import SecretKeys

_FORMER_SCOPE = 32  # hexadecimal digits of the hash of the owner


def id_of_named(keys: SecretKeys, name: str, owner: str) -> str:
    """Return the id of a new task.

    Args:
        keys: The keys of the installation.
        name: The owner's name for the task; empty gives empty.
        owner: The caller. Without callers there is one namespace, and the name is the id.
    """
    return f"{name}~{keys.external_id(owner, 'task', name)}" if name and owner else name


def possible_ids(keys: SecretKeys, task_id: str, owner: str) -> Iterator[str]:
    """Yield the ids of the task that an owner means, the most probable one first.

    Args:
        keys: The keys of the installation.
        task_id: The id of a task, or its owner's name for it. A name of an earlier secret that is still configured, and
            one of 0.1.0 (a hash of the owner in place of the identifier), are found as well.
        owner: The caller.
    """
    yield task_id
    if task_id and owner:
        for scope in keys.external_ids(owner, "task", task_id):
            yield f"{task_id}~{scope}"
        yield f"{task_id}~{sha256(owner.encode()).hexdigest()[:_FORMER_SCOPE]}"
