"""From the engine's thread to the callers' streams: one wake-up of the loop per step."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from crowfly.errors import CrowflyError
from crowfly_worker.changes import Changes
from crowfly_worker.engine.port import StepEvent


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event, and when its step had ended (`time.monotonic()`)."""

    event: StepEvent
    at: float


@dataclass(slots=True)
class Stream:
    """The events of one submitted sequence, for the one caller who reads them. At most as many
    wait here as the prompt has chunks and the answer may have tokens."""

    inbox: asyncio.Queue[Arrival | CrowflyError] = field(default_factory=asyncio.Queue)
    ended: bool = False  # the engine is done with it
    left: bool = False  # its caller is

    async def next(self) -> Arrival:
        """Raises the `CrowflyError` with which the worker ended the stream."""
        arrival = await self.inbox.get()
        if isinstance(arrival, CrowflyError):
            raise arrival
        return arrival


class Router:
    """Belongs to the loop, but for `deliver`. Knows a stream until both sides are done with it."""

    def __init__(self, changes: Changes) -> None:
        self._loop = asyncio.get_running_loop()
        self._changes = changes
        self._streams: dict[str, Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, id: object) -> bool:
        return id in self._streams

    def open(self, id: str) -> Stream:
        """For a sequence that was submitted in this same callback of the loop, so that none of
        its events can have been routed yet."""
        stream = self._streams[id] = Stream()
        self._changes.notify()
        return stream

    def leave(self, id: str) -> None:
        """Nobody reads this stream any more."""
        self._streams[id].left = True
        self._forget_if_done(id)

    def deliver(self, events: Sequence[StepEvent]) -> None:
        """What one step did. Any thread."""
        self._loop.call_soon_threadsafe(self._route, events, time.monotonic())

    def end_all(self, error: CrowflyError) -> None:
        """Every caller gets `error` after what has arrived so far."""
        for stream in self._streams.values():
            stream.inbox.put_nowait(error)

    def _route(self, events: Sequence[StepEvent], at: float) -> None:
        for event in events:
            stream = self._streams[event.id]
            stream.inbox.put_nowait(Arrival(event, at))
            if event.finish is not None:
                stream.ended = True
                self._forget_if_done(event.id)
        self._changes.notify()

    def _forget_if_done(self, id: str) -> None:
        if self._streams[id].ended and self._streams[id].left:
            del self._streams[id]
            self._changes.notify()
