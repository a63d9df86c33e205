"""A caller that goes away leaves nothing behind, however it goes.

With the real small model, whose steps take tens of milliseconds: tokens after the cut are counted.
"""

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest

from crowfly import AutoTuneSession
from crowfly.cli.cluster import LocalCluster
from crowfly.v1 import dispatcher_pb2, dispatcher_pb2_grpc, worker_pb2, worker_pb2_grpc

pytestmark = [pytest.mark.cluster, pytest.mark.model]
READY_SECONDS = 30
PROMPT = [504, 3575, 282, 4649, 314]  # "The capital of France is"
MAX_TOKENS = 400
CUTS = 50
BACK_SECONDS = 5.0  # tests/worker/wire/test_real_engine.py has the tight bounds, on a paced engine


Cut = Callable[[AutoTuneSession, str], Awaitable[int]]


class Watcher:
    """The only worker's counters, as the dispatcher shows them."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = dispatcher_pb2_grpc.DispatcherServiceStub(channel)

    async def worker(self) -> dispatcher_pb2.PlacedWorker:
        answer = await self._stub.GetCluster(dispatcher_pb2.GetClusterRequest(), timeout=2)
        return answer.workers[0]

    async def idle(self) -> dispatcher_pb2.PlacedWorker:
        """The worker once nothing runs, is held or promised there, within seconds."""
        async with asyncio.timeout(BACK_SECONDS):
            while True:
                worker = await self.worker()
                report = worker.report
                if (
                    report.free_pages == worker.registration.total_pages
                    and not report.running_sequences
                    and not report.held_claims
                    and not worker.promised_pages
                ):
                    return worker


async def cut_by_leaving_the_loop(session: AutoTuneSession, address: str) -> int:
    got = 0
    async with await session.stream(PROMPT, max_tokens=MAX_TOKENS) as stream:
        async for delta in stream:
            got += len(delta.token_ids)
            if got >= 5:
                break
    return got


async def read(address: str, most: int | None, seconds: float | None) -> int:
    """Place and generate by bare gRPC, and cancel the call after `most` tokens."""
    got = 0
    async with grpc.aio.insecure_channel(address) as channel:
        place = dispatcher_pb2_grpc.DispatcherServiceStub(channel).Place
        wanted = dispatcher_pb2.PlaceRequest(prompt_tokens=len(PROMPT), max_tokens=MAX_TOKENS)
        placed = await place(wanted, timeout=5)
    async with grpc.aio.insecure_channel(placed.worker_address) as direct:
        call = worker_pb2_grpc.WorkerServiceStub(direct).Generate(
            worker_pb2.GenerateRequest(ticket=placed.ticket, prompt_token_ids=PROMPT),
            timeout=seconds,
        )
        async for response in call:
            got += len(response.token_ids)
            if most is not None and got >= most:
                call.cancel()
                break
    return got


async def cut_by_cancelling_the_call(session: AutoTuneSession, address: str) -> int:
    return await read(address, most=5, seconds=None)


async def cut_by_deadline(session: AutoTuneSession, address: str) -> int:
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await read(address, most=None, seconds=0.1)
    assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    return 0


@pytest.mark.parametrize(
    "cut", [cut_by_leaving_the_loop, cut_by_cancelling_the_call, cut_by_deadline]
)
def test_a_cut_stream_gives_everything_back(one_real_worker: LocalCluster, cut: Cut) -> None:
    async def scenario() -> None:
        async with (
            one_real_worker as cluster,
            AutoTuneSession(cluster.address) as session,
            grpc.aio.insecure_channel(cluster.address) as channel,
        ):
            await session.wait_until_served(READY_SECONDS)
            watcher = Watcher(channel)
            await watcher.idle()
            for number in range(1, CUTS + 1):
                await cut(session, cluster.address)
                after = await watcher.idle()
                assert after.report.cancelled_total == number
            log = cluster.services["worker-1"].log.read_text("utf-8")
            assert "Traceback" not in log, log[log.index("Traceback") - 1500 :]
            assert log.count("cut") == CUTS

    asyncio.run(scenario())
