"""Puts the node's record into the store: at once when it differs, else as a heartbeat."""

import asyncio
import logging
import time
from collections.abc import Callable

from crowfly import wire
from crowfly.store.interface import Lease, StoreError
from crowfly.v1 import topology_pb2
from crowfly_topology.record import differs
from crowfly_topology.ticks import Ticks

log = logging.getLogger(__name__)

Compose = Callable[[int, float], topology_pb2.NodeRecord]  # of a sequence and time.monotonic()


class Publisher:
    def __init__(self, lease: Lease, key: str, compose: Compose) -> None:
        self._lease = lease
        self._key = key
        self._compose = compose
        self._published: topology_pb2.NodeRecord | None = None
        self._published_at = 0.0
        self._outage = False

    async def run(self) -> None:
        """Tick until cancelled."""
        ticks = Ticks(time.monotonic())
        while True:
            now = time.monotonic()
            await asyncio.sleep(ticks.next(now) - now)
            await self.tick(time.monotonic())

    async def tick(self, now: float) -> None:
        """One look at the node. A store that fails is logged once per outage, never raised."""
        last = self._published
        record = self._compose(last.sequence + 1 if last else 1, now)
        if last and not self._is_heartbeat_due(now) and not differs(last, record):
            return
        # Also when the put fails: the lease keeps the value and puts it when the store is back.
        self._published, self._published_at = record, now
        await self._put(record)

    def _is_heartbeat_due(self, now: float) -> bool:
        """True when the next tick would be too late."""
        return now + wire.TICK_SECONDS > self._published_at + wire.HEARTBEAT_SECONDS

    async def _put(self, record: topology_pb2.NodeRecord) -> None:
        try:
            await self._lease.put(self._key, record.SerializeToString())
        except StoreError as error:
            if not self._outage:
                log.warning("this node is not published: %s", error)
            self._outage = True
        else:
            if self._outage:
                log.info("this node is published again")
            self._outage = False
