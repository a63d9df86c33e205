"""The link to one worker: a control stream, and after its end the next one."""

import asyncio
import logging

import grpc

from crowfly import wire
from crowfly.v1 import worker_pb2, worker_pb2_grpc
from crowfly_dispatcher.cluster import Cluster
from crowfly_dispatcher.control_stream import ControlStream
from crowfly_dispatcher.core.model import WorkerFacts

log = logging.getLogger(__name__)

# Between two tries: doubled up to a second, so that a worker that is back is used within one.
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0


class ControlLink:
    """`run` it for as long as the worker is registered."""

    def __init__(self, facts: WorkerFacts, dispatcher_id: str, cluster: Cluster) -> None:
        self.facts = facts
        self._dispatcher_id = dispatcher_id
        self._cluster = cluster
        self._stream = self._new_stream()

    async def run(self) -> None:
        options = wire.CHANNEL_OPTIONS
        async with grpc.aio.insecure_channel(self.facts.address, options=options) as channel:
            worker = worker_pb2_grpc.WorkerServiceStub(channel)
            pause = FIRST_PAUSE_SECONDS
            while True:
                reason = await self._stream.run(worker.Control())
                if self._stream.was_connected:
                    log.info("worker %s is suspect: %s", self.facts.id, reason)
                    pause = FIRST_PAUSE_SECONDS
                elif pause == FIRST_PAUSE_SECONDS:  # said once
                    log.info("worker %s does not answer yet: %s", self.facts.id, reason)
                self._stream = self._new_stream()
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def open(self, claim: worker_pb2.OpenStream, pages: int) -> worker_pb2.StreamOpened:
        """As `ControlStream.open`. Raises `ClaimFailed`."""
        return await self._stream.open(claim, pages)

    def _new_stream(self) -> ControlStream:
        return ControlStream(self.facts, self._dispatcher_id, self._cluster)
