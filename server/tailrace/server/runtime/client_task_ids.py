"""Task ids for clients that choose the ids themselves, like clients of A2A 0.1.

Two callers may choose the same name for a task, so the id is the name and a suffix. The suffix is derived from the owner and the
secret of the installation, so that no other caller can compute the id.
"""

from collections.abc import Iterator
from hashlib import sha256

from tailrace.server.store.secret_keys import SecretKeys

_FORMER_SCOPE = 32  # hexadecimal digits


def id_of_named(keys: SecretKeys, name: str, owner: str) -> str:
    """Return the id of a new task with this name.

    Args:
        keys: The keys of the installation.
        name: The owner's name for the task; empty for no id.
        owner: The owner of the task. Without authentication, it is empty, and the name is the id.
    """
    return f"{name}~{keys.external_id(owner, 'task', name)}" if name and owner else name


def possible_ids(keys: SecretKeys, task_id: str, owner: str) -> Iterator[str]:
    """Yield the possible ids of a stored task, the most probable one first.

    They include ids from earlier secrets, and ids of former versions of tailrace, whose suffix is a hash of the owner.
    """
    yield task_id
    if task_id and owner:
        for scope in keys.external_ids(owner, "task", task_id):
            yield f"{task_id}~{scope}"
        yield f"{task_id}~{sha256(owner.encode()).hexdigest()[:_FORMER_SCOPE]}"
