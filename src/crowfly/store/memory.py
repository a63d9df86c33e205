"""The store inside one process, for tests and simulation."""

import asyncio
from collections.abc import AsyncGenerator, Mapping

from crowfly.store.interface import StoreError, WatchEvent
from crowfly.store.mailbox import Mailbox


class MemoryStore:
    """Never away, never slow: no call raises `StoreError`, no watch says `Lost`."""

    def __init__(self) -> None:
        self._items: dict[str, bytes] = {}
        self._owners: dict[str, MemoryLease] = {}
        self._watchers: dict[Mailbox, str] = {}  # with the prefix of each

    async def read(self, prefix: str) -> Mapping[str, bytes]:
        return self._under(prefix)

    async def watch(self, prefix: str) -> AsyncGenerator[WatchEvent, None]:
        mailbox = Mailbox()
        mailbox.snapshot(self._under(prefix))
        self._watchers[mailbox] = prefix
        try:
            while (event := await mailbox.next()) is not None:
                yield event
        finally:
            self._watchers.pop(mailbox, None)

    async def put(self, key: str, value: bytes) -> None:
        self.apply(key, value, None)

    async def swap(self, key: str, old: bytes | None, new: bytes | None) -> bool:
        if self._items.get(key) != old:
            return False
        if new is not None or old is not None:
            self.apply(key, new, None)
        return True

    async def lease(self, seconds: int) -> "MemoryLease":
        return MemoryLease(self)

    async def close(self) -> None:
        for mailbox in self._watchers:
            mailbox.close()
        self._watchers.clear()

    def expire(self, lease: "MemoryLease") -> None:
        """The store loses `lease`: its keys vanish. Its owner learns of it once the watchers that
        wait now were told, and puts them again."""
        self.vanish(lease)
        asyncio.get_running_loop().call_soon(lease.put_again)

    def vanish(self, lease: "MemoryLease") -> None:
        """Delete every key that `lease` holds."""
        for key in [key for key, owner in self._owners.items() if owner is lease]:
            self.apply(key, None, None)

    def apply(self, key: str, value: bytes | None, owner: "MemoryLease | None") -> None:
        """Set `key`, or delete it (None), and tell the watchers. The last put owns the key."""
        self._owners.pop(key, None)
        if value is None:
            del self._items[key]
        else:
            self._items[key] = value
            if owner is not None:
                self._owners[key] = owner
        for mailbox, prefix in self._watchers.items():
            if key.startswith(prefix):
                mailbox.change(key, value)

    def _under(self, prefix: str) -> dict[str, bytes]:
        return {key: value for key, value in self._items.items() if key.startswith(prefix)}


class MemoryLease:
    """Lasts until `revoke`, or until the test says `MemoryStore.expire`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._values: dict[str, bytes] = {}
        self._revoked = False

    async def put(self, key: str, value: bytes) -> None:
        if self._revoked:
            raise StoreError(f"the lease for {key} was revoked")
        self._values[key] = value
        self._store.apply(key, value, self)

    async def revoke(self) -> None:
        self._revoked = True
        self._store.vanish(self)

    def put_again(self) -> None:
        """As the owner of a lost lease does, with a new one."""
        if self._revoked:
            return
        for key, value in self._values.items():
            self._store.apply(key, value, self)
