"""Whatever dies, nothing else is hurt."""

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable

import grpc
import pytest

from crowfly import AutoTuneSession, Completion, Stream, Unavailable, wire
from crowfly.cli.cluster import LocalCluster
from crowfly.store import Store, StoreError, open_store
from crowfly.v1 import dispatcher_pb2, dispatcher_pb2_grpc

pytestmark = [pytest.mark.cluster, pytest.mark.model]
READY_SECONDS = 30
PROMPT = "Once upon a time, in a small village by the sea, there lived"
MAX_TOKENS = 100  # some 5 s for four streams on a worker


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.02)


async def started(session: AutoTuneSession, count: int) -> list[Stream]:
    """Streams that have all had their first token, and are far from their last."""
    streams = [await session.stream(f"{n}. {PROMPT}", max_tokens=MAX_TOKENS) for n in range(count)]
    await asyncio.gather(*(anext(stream) for stream in streams))
    return streams


async def all_of(session: AutoTuneSession, count: int) -> list[Completion]:
    """The whole answers, undisturbed."""
    asked = (session.complete(f"{n}. {PROMPT}", max_tokens=MAX_TOKENS) for n in range(count))
    return await asyncio.gather(*asked)


async def running(cluster: LocalCluster) -> int:
    """Sequences on all workers, as the dispatcher knows them."""
    async with grpc.aio.insecure_channel(cluster.address) as channel:
        stub = dispatcher_pb2_grpc.DispatcherServiceStub(channel)
        answer = await stub.GetCluster(dispatcher_pb2.GetClusterRequest(), timeout=2)
    return sum(worker.report.running_sequences for worker in answer.workers)


async def rest(stream: Stream) -> list[int]:
    return [token async for delta in stream for token in delta.token_ids]


def test_running_streams_outlive_the_dispatcher(real_cluster: LocalCluster) -> None:
    async def scenario() -> None:
        async with real_cluster as cluster, AutoTuneSession(cluster.address) as session:
            await session.wait_until_served(READY_SECONDS, workers=2)
            whole = await all_of(session, 8)
            streams = await started(session, 8)

            async def all_run() -> bool:
                return await running(cluster) == 8

            await until(all_run, 5)
            cluster.services["dispatcher"].process.kill()
            await cluster.services["dispatcher"].process.wait()
            tails = await asyncio.gather(*(rest(stream) for stream in streams))
            for tail, stream, expected in zip(tails, streams, whole, strict=True):
                assert tuple(tail) == expected.token_ids[-len(tail) :]
                assert stream.usage is not None
                assert stream.usage.completion_tokens == len(expected.token_ids)

    asyncio.run(scenario())


def test_a_killed_workers_streams_end_with_a_clear_error_and_the_other_serves(
    real_cluster: LocalCluster,
) -> None:
    async def scenario() -> None:
        async with real_cluster as cluster, AutoTuneSession(cluster.address) as session:
            await session.wait_until_served(READY_SECONDS, workers=2)
            streams = await started(session, 4)
            victim = next(
                service
                for service in cluster.services.values()
                if service.facts.get("worker_id") == streams[0].placement.worker_id
            )
            victim.process.kill()
            cut = [s for s in streams if s.placement.worker_id == victim.facts["worker_id"]]
            async with asyncio.timeout(5):
                ends = await asyncio.gather(*(rest(s) for s in cut), return_exceptions=True)
            for end in ends:
                assert isinstance(end, Unavailable)
                assert str(victim.facts["worker_id"]) in str(end)
            for stream in streams:
                if stream not in cut:
                    await rest(stream)
                    assert stream.finish_reason is not None
            answers: list[Completion] = []

            async def placed_elsewhere() -> bool:
                answers.append(await session.complete(PROMPT, max_tokens=4))
                return True

            await until(placed_elsewhere, 5)
            assert answers[0].usage.worker_id != victim.facts["worker_id"]

    asyncio.run(scenario())


async def registered(store: Store) -> int:
    try:
        return len(await store.read(wire.WORKERS)) + len(await store.read(wire.NODES))
    except StoreError:
        return 0


@pytest.mark.parametrize("wiped", [False, True], ids=["keeps its data", "loses its data"])
def test_etcd_may_die_under_traffic(real_cluster: LocalCluster, wiped: bool) -> None:
    async def scenario() -> None:
        async with real_cluster as cluster, AutoTuneSession(cluster.address) as session:
            await session.wait_until_served(READY_SECONDS, workers=2)
            assert cluster.store is not None
            assert cluster.etcd is not None
            expected = await session.complete(PROMPT, max_tokens=8)
            streams = await started(session, 4)
            if wiped:
                shutil.rmtree(cluster.etcd.data)
            os.kill(cluster.etcd.pid, signal.SIGKILL)
            store = open_store(cluster.store)

            async def all_back() -> bool:
                answer = await session.complete(PROMPT, max_tokens=8)  # the last map serves
                assert answer.token_ids == expected.token_ids
                return await registered(store) == 3  # two workers and the node

            try:
                await until(all_back, 15)
            finally:
                await store.close()
            await asyncio.gather(*(rest(stream) for stream in streams))

    asyncio.run(scenario())


def test_a_worker_told_to_end_finishes_its_streams_first(real_cluster: LocalCluster) -> None:
    async def scenario() -> None:
        async with real_cluster as cluster, AutoTuneSession(cluster.address) as session:
            await session.wait_until_served(READY_SECONDS, workers=2)
            expected = await all_of(session, 2)
            streams = await started(session, 2)
            draining = cluster.services["worker-1"]
            placed = [stream.placement.worker_id for stream in streams]
            assert draining.facts["worker_id"] in placed
            draining.process.terminate()
            ended = await asyncio.gather(*(rest(stream) for stream in streams))
            for tail, whole in zip(ended, expected, strict=True):
                assert tuple(tail) == whole.token_ids[-len(tail) :]
            async with asyncio.timeout(10):
                assert await draining.process.wait() == 0
            for _ in range(4):
                answer = await session.complete(PROMPT, max_tokens=4)
                assert answer.usage.worker_id != draining.facts["worker_id"]

    asyncio.run(scenario())
