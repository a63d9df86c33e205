"""TopologyService: workers' reports from the wire into `Reports`."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from crowfly import wire
from crowfly.errors import DeadlineExceeded, errors_as_status
from crowfly.v1 import topology_pb2, topology_pb2_grpc
from crowfly_topology.reports import Reports

# A worker speaks every wire.HEARTBEAT_SECONDS; one that is silent for as long as a lease lasts is
# frozen, and its connection alone would not tell.
SILENCE_SECONDS = float(wire.LEASE_SECONDS)


class TopologyServicer(topology_pb2_grpc.TopologyServiceServicer):
    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    async def Report(
        self,
        request_iterator: AsyncIterator[topology_pb2.ReportRequest],
        context: "grpc.aio.ServicerContext[Any, Any]",
    ) -> topology_pb2.ReportResponse:
        stream = self._reports.open()
        try:
            async with errors_as_status(context):
                await self._receive(stream, request_iterator)
        finally:
            self._reports.close(stream)
        return topology_pb2.ReportResponse()

    async def _receive(
        self, stream: int, requests: AsyncIterator[topology_pb2.ReportRequest]
    ) -> None:
        requests = aiter(requests)
        while (request := await _next_within(SILENCE_SECONDS, requests)) is not None:
            self._reports.accept(stream, request.report, time.monotonic())


async def _next_within(
    seconds: float, requests: AsyncIterator[topology_pb2.ReportRequest]
) -> topology_pb2.ReportRequest | None:
    """None at the end of the stream. Raises `DeadlineExceeded`."""
    try:
        async with asyncio.timeout(seconds):
            return await anext(requests, None)
    except TimeoutError:
        raise DeadlineExceeded(f"no report for {seconds:g} s: open a new stream") from None
