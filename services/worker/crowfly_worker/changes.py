"""Who waits for the worker's state to change, and when they look again."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from crowfly import wire

P = TypeVar("P")


class Changes:
    """Belongs to the loop; `notify` is called by whoever changed something."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Event] = set()

    def notify(self) -> None:
        for listener in self._listeners:
            listener.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return as soon as `condition` holds; the caller bounds the wait."""
        with self._listening() as changed:
            while not condition():
                changed.clear()
                await changed.wait()

    async def pictures(self, look: Callable[[], P], seconds: float) -> AsyncGenerator[P]:
        """`look()` now, then whenever it has changed: at once, but at most every `seconds`; an
        unchanged picture comes again every `HEARTBEAT_SECONDS`."""
        loop = asyncio.get_running_loop()
        with self._listening() as changed:
            while True:
                changed.clear()
                picture = look()
                yield picture
                heartbeat = loop.time() + wire.HEARTBEAT_SECONDS
                await asyncio.sleep(seconds)
                while look() == picture and await _set_before(heartbeat, changed):
                    changed.clear()

    @contextmanager
    def _listening(self) -> Iterator[asyncio.Event]:
        changed = asyncio.Event()
        self._listeners.add(changed)
        try:
            yield changed
        finally:
            self._listeners.discard(changed)


async def _set_before(when: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout_at(when):
            await event.wait()
    except TimeoutError:
        return False
    return True
