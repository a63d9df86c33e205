"""The five verbs that Crowfly asks of a store: read, watch, put, swap, lease.

    Store ── read(prefix)            what is there now
          ── watch(prefix)           what is there now, then every change; never silently behind
          ── put(key, value)         without a lease: stays until deleted
          ── swap(key, old, new)     compare and set, create or delete
          ── lease(seconds)          keys that vanish with their owner

Keys are text, values bytes, and a prefix is not empty. Every call is bounded in time and raises
`StoreError` when the store does not answer or refuses. `watch` never raises for that, and a lease
comes back by itself.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Protocol


class StoreError(Exception):
    """The store did not answer in time, or refused. The message names the store and the reason."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that stands under the prefix. Comes before any `Change`, and again whenever changes may
    have been missed (the history was compacted, or the store lost its data): forget everything
    else."""

    items: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Change:
    """One key. `value is None`: it is gone."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Lost:
    """The store stopped answering, or does not answer yet: what was heard so far is the last known
    state. `Restored` or a `Snapshot` follows when it is back."""

    reason: str


@dataclass(frozen=True, slots=True)
class Restored:
    """The watch goes on where it stopped; nothing was missed."""


WatchEvent = Snapshot | Change | Lost | Restored


class Lease(Protocol):
    """Keys that vanish when their owner does.

    Kept alive in the background until `revoke`. If the store loses the lease (it was down for
    longer than the lease lasts, lost its data, or somebody revoked it), a new one is granted and
    every key put so far is put again with its newest value.
    """

    async def put(self, key: str, value: bytes) -> None:
        """Raises `StoreError`; the value is remembered and put again all the same."""

    async def revoke(self) -> None:
        """Delete the keys now and stop. Best effort within 1 s: a store that is away deletes them
        when the lease ends."""


class Store(Protocol):
    async def read(self, prefix: str) -> Mapping[str, bytes]:
        """All keys that start with `prefix`. Raises `StoreError`."""

    def watch(self, prefix: str) -> AsyncGenerator[WatchEvent, None]:
        """A `Snapshot`, then every change in order; whoever reads slowly gets only the newest
        value of each key. Ends when the store is closed; `aclose` it to stop before."""

    async def put(self, key: str, value: bytes) -> None:
        """Raises `StoreError`."""

    async def swap(self, key: str, old: bytes | None, new: bytes | None) -> bool:
        """Set `key` to `new` if its value is `old` (None: absent). False if it was not.
        Raises `StoreError`; whether the swap happened is unknown then."""

    async def lease(self, seconds: int) -> Lease:
        """Granted now if the store answers, else as soon as it does; never raises `StoreError`."""

    async def close(self) -> None:
        """Stop all background work; leases are left to expire."""
