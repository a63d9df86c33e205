"""A worker enters the map, reports to its agent, and leaves without losing what it promised."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from crowfly import wire
from crowfly.store import MemoryStore, Store
from crowfly.v1 import (
    common_pb2,
    topology_pb2,
    topology_pb2_grpc,
    worker_pb2,
)
from crowfly_worker.worker import EngineFailed

if TYPE_CHECKING:
    from tests.worker.wire.conftest import Served, ServeScripted

WAIT_SECONDS = 20.0
PROMPT = [0, 0, 0, 96]


def generate(
    served: "Served", ticket: str
) -> grpc.aio.UnaryStreamCall[worker_pb2.GenerateRequest, worker_pb2.GenerateResponse]:
    return served.stub.Generate(worker_pb2.GenerateRequest(ticket=ticket, prompt_token_ids=PROMPT))


async def text(served: "Served", ticket: str) -> str:
    return "".join([response.text async for response in generate(served, ticket)])


def test_a_worker_registers_what_never_changes(serve_scripted: "ServeScripted") -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            (item,) = (await served.store.read(wire.WORKERS)).items()
            registration = worker_pb2.WorkerRegistration.FromString(item[1])
            assert item[0] == wire.WORKERS + registration.worker_id
            assert registration == served.worker.registration
            assert registration.model.name == "scripted"
            assert registration.model.context_tokens == 200
            assert registration.model.vocab_size == 256
            assert registration.precision == common_pb2.PRECISION_FP32
            assert registration.kernel == common_pb2.KERNEL_RUNG_TORCH
            assert (registration.page_tokens, registration.total_pages) == (16, 20)
            assert registration.page_bytes == 1000
            assert (registration.node, registration.device_uuid) == ("n", "CPU-n")
        assert not await served.store.read(wire.WORKERS)

    asyncio.run(scenario())


def test_two_workers_of_a_node_are_two(serve_scripted: "ServeScripted") -> None:
    async def scenario() -> None:
        store = MemoryStore()
        async with serve_scripted(store) as one, serve_scripted(store) as other:
            assert len(await store.read(wire.WORKERS)) == 2
            assert one.worker.registration.epoch != other.worker.registration.epoch

    asyncio.run(scenario())


def test_draining_keeps_every_promise_and_makes_none(serve_scripted: "ServeScripted") -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            running = asyncio.ensure_future(text(served, await served.placed(4, max_tokens=3)))
            await served.eventually(lambda: served.engine.load().running == 1)
            held = await served.placed(4, max_tokens=2)
            dispatcher = await served.dispatcher()
            drain = asyncio.ensure_future(served.worker.drain(WAIT_SECONDS, asyncio.Event()))
            capacity = await dispatcher.capacity(lambda report: report.draining)
            assert capacity.report.held_claims == 1
            assert not await served.store.read(wire.WORKERS)
            refused = await dispatcher.open(served.ticket())
            assert isinstance(refused, worker_pb2.StreamRefused)
            assert refused.reason == worker_pb2.REFUSAL_REASON_DRAINING
            again = await dispatcher.open(held, max_tokens=2)
            assert isinstance(again, worker_pb2.StreamOpened)
            served.engine.allow(3)
            assert await running == "abc"
            assert not drain.done()
            served.engine.allow(2)
            assert await text(served, held) == "ab"
            await asyncio.wait_for(drain, WAIT_SECONDS)

    asyncio.run(scenario())


def test_what_runs_after_the_drain_time_ends_with_a_clear_error(
    serve_scripted: "ServeScripted",
) -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            call = generate(served, await served.placed())
            served.engine.allow(1)
            await anext(aiter(call))
            await served.worker.drain(0.0, asyncio.Event())
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert await call.details() == "the worker stopped before the answer was done"
            await served.idle()

    asyncio.run(scenario())


def test_a_second_signal_ends_the_drain_at_once(serve_scripted: "ServeScripted") -> None:
    async def scenario() -> None:
        async with serve_scripted() as served:
            call = generate(served, await served.placed())
            served.engine.allow(1)
            await anext(aiter(call))
            now = asyncio.Event()
            drain = asyncio.ensure_future(served.worker.drain(600.0, now))
            await served.eventually(lambda: served.worker.reservations.draining)
            now.set()
            await asyncio.wait_for(drain, WAIT_SECONDS)
            assert await call.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(scenario())


class Agent(topology_pb2_grpc.TopologyServiceServicer):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[common_pb2.WorkerReport] = asyncio.Queue()

    async def Report(
        self, requests: AsyncIterator[topology_pb2.ReportRequest], context: object
    ) -> topology_pb2.ReportResponse:
        async for request in requests:
            self.heard.put_nowait(request.report)
        return topology_pb2.ReportResponse()

    async def next(self, free_pages: int) -> common_pb2.WorkerReport:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                report = await self.heard.get()
                if report.free_pages == free_pages:
                    return report


@asynccontextmanager
async def an_agent(store: Store) -> AsyncIterator[Agent]:
    """On a new port, which it publishes."""
    agent, server = Agent(), grpc.aio.server()
    topology_pb2_grpc.add_TopologyServiceServicer_to_server(agent, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    record = topology_pb2.NodeRecord(node="n", agent_address=address)
    await store.put(wire.NODES + "n", record.SerializeToString())
    try:
        yield agent
    finally:
        await server.stop(None)


def test_the_agent_hears_of_every_change(serve_scripted: "ServeScripted") -> None:
    async def scenario() -> None:
        store = MemoryStore()
        async with an_agent(store) as agent, serve_scripted(store) as served:
            first = await agent.next(free_pages=20)
            await served.placed()
            second = await agent.next(free_pages=19)
            assert first.worker_id == second.worker_id == served.worker.registration.worker_id
            assert first.sequence < second.sequence
            assert second.held_claims == 1

    asyncio.run(scenario())


def test_serving_goes_on_without_an_agent_and_a_new_one_is_found(
    serve_scripted: "ServeScripted",
) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        async with serve_scripted(store) as served:
            served.engine.allow(float("inf"))
            assert await text(served, await served.placed(4, max_tokens=2)) == "ab"
            for _ in range(2):  # the second has another port
                async with an_agent(store) as agent:
                    await agent.next(free_pages=20)
            assert await text(served, await served.placed(4, max_tokens=2)) == "ab"

    asyncio.run(scenario())


def test_a_record_that_cannot_be_read_is_an_agent_that_is_away(
    serve_scripted: "ServeScripted",
) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        await store.put(wire.NODES + "n", b"\xff\xff\xff")
        async with serve_scripted(store) as served:
            served.engine.allow(float("inf"))
            assert await text(served, await served.placed(4, max_tokens=2)) == "ab"
            async with an_agent(store) as agent:
                await agent.next(free_pages=20)

    asyncio.run(scenario())


def test_a_worker_whose_engine_breaks_ends_its_streams_and_leaves(
    serve_scripted: "ServeScripted",
) -> None:
    async def break_it(store: Store) -> None:
        async with serve_scripted(store) as served:
            call = generate(served, await served.placed())
            served.engine.allow(1)
            await anext(aiter(call))
            served.engine.break_down()
            with pytest.raises(grpc.aio.AioRpcError, match="engine failed") as cut:
                await anext(aiter(call))
            assert cut.value.code() is grpc.StatusCode.INTERNAL
            async with asyncio.timeout(WAIT_SECONDS):
                await asyncio.Event().wait()  # until the worker ends this block

    async def scenario() -> None:
        store = MemoryStore()
        with pytest.raises(ExceptionGroup) as ended:
            await break_it(store)
        assert ended.group_contains(EngineFailed, match="broken down")
        assert not await store.read(wire.WORKERS)

    asyncio.run(scenario())
