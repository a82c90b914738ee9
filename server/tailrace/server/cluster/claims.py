"""Claims: names that at most one node holds at a time."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import anyio

from tailrace.server.cluster.ownership import TaskOwnership
from tailrace.server.store.store import NotOwnedError
from tailrace.wrappers import StoreError

logger = logging.getLogger("tailrace.server")

FIRST_PAUSE, LAST_PAUSE = 0.02, 0.25
"""Shortest and longest delay in seconds between two attempts to acquire a claim that another request holds."""


class Claims:
    """The claims of a node."""

    def __init__(self, ownership: TaskOwnership) -> None:
        self._ownership = ownership
        self._locks: WeakValueDictionary[tuple[str, str], anyio.Lock] = WeakValueDictionary()
        self._failed_releases: set[tuple[str, str]] = set()

    @asynccontextmanager
    async def holding(self, owner: str, name: str) -> AsyncGenerator[None]:
        """Hold a claim until the block ends."""
        async with self._locks.setdefault((owner, name), anyio.Lock()):
            await self.acquire(owner, name)
            try:
                yield
            finally:
                await self.release(owner, name)

    async def acquire(self, owner: str, name: str, task_id: str | None = None) -> None:
        """Wait until this node holds a claim. See `TaskOwnership.claim` for the arguments.

        Raises:
            StoreError: The claim cannot be written at present.
        """
        pause = FIRST_PAUSE
        while not await self._ownership.claim(owner, name, task_id):
            await anyio.sleep(pause)
            pause = min(1.5 * pause, LAST_PAUSE)
        self._failed_releases.discard((owner, name))

    async def release(self, owner: str, name: str) -> None:
        """Release a claim, now or in `retry_failed_releases`."""
        with anyio.CancelScope(shield=True):
            try:
                await self._ownership.release(owner, name)
            except NotOwnedError:
                pass
            except StoreError as error:
                logger.warning("a claim is held for a while longer: %s", error)
                self._failed_releases.add((owner, name))

    async def retry_failed_releases(self) -> None:
        """Release the claims whose release failed.

        Raises:
            StoreError: The store is not available at present.
        """
        for claim in list(self._failed_releases):
            await self._ownership.release(*claim)
            self._failed_releases.discard(claim)

    def forget_failed_releases(self) -> None:
        """Forget the claims whose release failed, because they belong to an earlier id of the node."""
        self._failed_releases.clear()
