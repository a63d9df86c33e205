"""A watch on etcd that is never silently behind: list, watch from there, resume, list again.

list ──> follow ──(broken, silent)──> still there? ──yes──> follow from the last change
 ^          │                              │
 └──────────┴───── compacted, or ──────────┘ the data was lost
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import grpc

from crowfly.store.backoff import Backoff
from crowfly.store.etcd_keys import decode_key, encode_key, prefix_end
from crowfly.store.etcd_members import (
    BACKOFF_FIRST_SECONDS,
    BACKOFF_MOST_SECONDS,
    READ,
    CallFailed,
    Members,
)
from crowfly.store.etcd_pb2 import (
    Event,
    RangeRequest,
    RangeResponse,
    WatchCreateRequest,
    WatchProgressRequest,
    WatchRequest,
)
from crowfly.store.interface import StoreError
from crowfly.store.mailbox import Mailbox

# A frozen etcd sends no FIN, so it is asked for a sign of life: noticed after at most 4 s, less
# than a lease lasts.
ASK_SECONDS = 1.5
SILENCE_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Position:
    """Everything up to `revision` of that cluster's history has been told."""

    cluster_id: int
    revision: int


class EtcdWatch:
    """Fills a mailbox with what happens under a prefix, until cancelled."""

    def __init__(self, members: Members, prefix: str, mailbox: Mailbox) -> None:
        self._members = members
        self._prefix = prefix
        self._mailbox = mailbox
        self._position: Position | None = None
        self._backoff = Backoff(BACKOFF_FIRST_SECONDS, BACKOFF_MOST_SECONDS)

    async def run(self) -> None:
        while True:
            try:
                position = await self._resumed() or await self._list()
                await self._follow(position)
            except StoreError as error:
                self._mailbox.lost(str(error))
                await asyncio.sleep(self._backoff.next())

    async def _resumed(self) -> Position | None:
        """The position, if the store still has every change after it."""
        position = self._position
        if position is None:
            return None
        request = RangeRequest(key=encode_key(self._prefix), revision=position.revision)
        try:
            answer = await self._members.call(lambda member: member.kv.Range, request, READ)
        except CallFailed as error:
            # Compacted, or a revision that the store has not reached: it lost its data.
            if error.code is grpc.StatusCode.OUT_OF_RANGE:
                return None
            raise
        return position if answer.header.cluster_id == position.cluster_id else None

    async def _list(self) -> Position:
        request = RangeRequest(key=encode_key(self._prefix), range_end=prefix_end(self._prefix))
        answer: RangeResponse = await self._members.call(
            lambda member: member.kv.Range, request, READ
        )
        self._mailbox.snapshot({decode_key(kv.key): kv.value for kv in answer.kvs})
        self._position = Position(answer.header.cluster_id, answer.header.revision)
        return self._position

    async def _follow(self, position: Position) -> None:
        """Tell every change after `position`. Returns when a list is needed, else raises
        `StoreError`."""
        events: list[Event] = []
        async with self._members.stream(
            lambda member: member.watch.Watch,
            self._requests(position.revision + 1),
            silence=SILENCE_SECONDS,
        ) as answers:
            while True:
                answer = await answers.next()
                if answer.compact_revision:  # the stream stays open, and silent
                    self._position = None
                    return
                if answer.canceled:  # together with `created`, it is a refusal
                    raise answers.failure(f"the watch was cancelled: {answer.cancel_reason}")
                if answer.created:
                    self._backoff.reset()
                    self._mailbox.restored()
                events.extend(answer.events)
                if not answer.fragment:
                    self._tell(position.cluster_id, events)
                    events.clear()

    async def _requests(self, start: int) -> AsyncGenerator[WatchRequest, None]:
        create = WatchCreateRequest(
            key=encode_key(self._prefix),
            range_end=prefix_end(self._prefix),
            start_revision=start,
            fragment=True,  # else an answer over the message limit breaks the stream
        )
        yield WatchRequest(create_request=create)
        while True:
            await asyncio.sleep(ASK_SECONDS)
            yield WatchRequest(progress_request=WatchProgressRequest())

    def _tell(self, cluster_id: int, events: list[Event]) -> None:
        for event in events:
            value = None if event.type == Event.DELETE else event.kv.value
            self._mailbox.change(decode_key(event.kv.key), value)
        if events:
            # Not the header's revision: etcd before 3.4.25 and 3.5.8 may be ahead of the events.
            self._position = Position(cluster_id, events[-1].kv.mod_revision)
