"""Reports to the node's agent, for as long as the worker lives. Serving never waits for it."""

import asyncio
import logging
from contextlib import aclosing

import grpc
from google.protobuf.message import DecodeError

from crowfly import wire
from crowfly.cancellation import asked_to_stop
from crowfly.store.interface import Store, StoreError
from crowfly.v1 import topology_pb2, topology_pb2_grpc
from crowfly_worker.changes import Changes
from crowfly_worker.reporter import Reporter

_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 2.0  # an agent that came back hears of us after at most this
_WRITE_SECONDS = 3.0  # three heartbeats; an agent that takes longer is looked up again

_log = logging.getLogger(__name__)

Report = grpc.aio.StreamUnaryCall[topology_pb2.ReportRequest, topology_pb2.ReportResponse]


class AgentLink:
    """Finds the agent's address in the store, each time anew, since an agent may move."""

    def __init__(self, node: str, store: Store, reporter: Reporter, changes: Changes) -> None:
        self._node = node
        self._store = store
        self._reporter = reporter
        self._changes = changes
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._away = ""  # why, as last logged

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._report_to(await self._find())
            except (LookupError, StoreError, TimeoutError) as error:
                self._say(f"{type(error).__name__}: {error}")
            except grpc.aio.AioRpcError as error:
                self._say(f"{error.code().name}: {error.details()}")
            if asked_to_stop():  # grpc.aio loses a cancellation that meets a call's own end
                raise asyncio.CancelledError
            await asyncio.sleep(self._retry_seconds)
            self._retry_seconds = min(2 * self._retry_seconds, _LAST_RETRY_SECONDS)

    async def _find(self) -> str:
        """Raises `LookupError` if no agent has published this node, and `StoreError`."""
        key = wire.NODES + self._node
        value = (await self._store.read(key)).get(key)
        if value is None:
            raise LookupError(f"nothing under {key}")
        try:
            return topology_pb2.NodeRecord.FromString(value).agent_address
        except DecodeError as error:
            raise LookupError(f"what is under {key} is no record: {error}") from error

    async def _report_to(self, address: str) -> None:
        """Until the agent ends the stream. Raises `AioRpcError`, or `TimeoutError`."""
        async with grpc.aio.insecure_channel(address, options=wire.CHANNEL_OPTIONS) as channel:
            call = topology_pb2_grpc.TopologyServiceStub(channel).Report()
            pictures = self._changes.pictures(self._reporter.picture, wire.TICK_SECONDS)
            async with aclosing(pictures):
                async for _ in pictures:
                    if call.done():
                        break
                    await self._send(call)
                    self._connected(address)
            await call  # raises what ended it

    async def _send(self, call: Report) -> None:
        async with asyncio.timeout(_WRITE_SECONDS):
            await call.write(topology_pb2.ReportRequest(report=self._reporter.make()))

    def _connected(self, address: str) -> None:
        self._retry_seconds = _FIRST_RETRY_SECONDS
        if self._away:
            _log.info("reporting to the agent at %s", address)
            self._away = ""

    def _say(self, reason: str) -> None:
        if reason != self._away:
            _log.info("the node's agent is away, serving goes on: %s", reason)
            self._away = reason
