"""What one watcher has not read yet, bounded by the number of keys however slow it is.

A watcher that keeps up sees every change. One that is behind sees the newest value of each key,
in the order of these newest changes; a key that came and went unseen is not mentioned.
"""

import asyncio
from collections.abc import Mapping

from crowfly.store.interface import Change, Lost, Restored, Snapshot, WatchEvent


class Mailbox:
    """One writer, one reader, one event loop."""

    def __init__(self) -> None:
        self._snapshot: dict[str, bytes] | None = None
        self._changes: dict[str, bytes | None] = {}  # the oldest first
        self._known: set[str] = set()  # what the reader believes to exist
        self._lost: str | None = None
        self._told_lost = False
        self._closed = False
        self._news = asyncio.Event()

    def snapshot(self, items: Mapping[str, bytes]) -> None:
        """This is all there is now: what was not read before it is void."""
        self._snapshot = dict(items)
        self._changes.clear()
        self._lost = None
        self._news.set()

    def change(self, key: str, value: bytes | None) -> None:
        if self._snapshot is not None:
            _apply(self._snapshot, key, value)
        else:
            self._changes.pop(key, None)
            if value is not None or key in self._known:
                self._changes[key] = value
        self._news.set()

    def lost(self, reason: str) -> None:
        """Told once, however often the store fails, until it is back."""
        if self._lost is None:
            self._lost = reason
            self._news.set()

    def restored(self) -> None:
        self._lost = None
        self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def next(self) -> WatchEvent | None:
        """The next event; waits for one. None: closed, and everything was read."""
        while (event := self._take()) is None and not self._closed:
            self._news.clear()
            await self._news.wait()
        return event

    def _take(self) -> WatchEvent | None:
        if self._snapshot is not None:
            return self._take_snapshot(self._snapshot)
        if self._told_lost and self._lost is None:
            self._told_lost = False
            return Restored()
        if self._changes:
            return self._take_change()
        if self._lost is not None and not self._told_lost:
            self._told_lost = True
            return Lost(self._lost)
        return None

    def _take_snapshot(self, items: dict[str, bytes]) -> Snapshot:
        self._snapshot = None
        self._told_lost = False
        self._known = set(items)
        return Snapshot(items)

    def _take_change(self) -> Change:
        key = next(iter(self._changes))
        value = self._changes.pop(key)
        if value is None:
            self._known.discard(key)
        else:
            self._known.add(key)
        return Change(key, value)


def _apply(items: dict[str, bytes], key: str, value: bytes | None) -> None:
    if value is None:
        items.pop(key, None)
    else:
        items[key] = value
