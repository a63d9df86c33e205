"""The store's background work ends at whatever moment it is cancelled.

A stream that its server ends can swallow the cancellation of the task that reads it: about one in
a hundred of the moments below.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from crowfly.store import background
from crowfly.store.etcd_lease import EtcdLease
from crowfly.store.etcd_members import Members, parse_endpoints
from crowfly.store.etcd_watch import EtcdWatch
from crowfly.store.mailbox import Mailbox

MOMENTS = [ticks for ticks in range(60) for _ in range(10)]  # turns of the loop
WAIT_SECONDS = 10.0


async def say_nothing(request: bytes, context: object) -> bytes:
    """Nothing is listed, lease 0 is granted."""
    return b""


async def hang_up(requests: AsyncIterator[bytes], context: object) -> AsyncGenerator[bytes, None]:
    for nothing in tuple[bytes, ...]():
        yield nothing


@asynccontextmanager
async def members_that_end_every_stream() -> AsyncGenerator[Members, None]:
    server = grpc.aio.server()
    call: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(say_nothing)
    stream: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(hang_up)
    methods = {
        "KV": {"Range": call},
        "Watch": {"Watch": stream},
        "Lease": {"LeaseGrant": call, "LeaseKeepAlive": stream},
    }
    server.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(f"etcdserverpb.{service}", handlers)
            for service, handlers in methods.items()
        )
    )
    members = Members(parse_endpoints(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"))
    await server.start()
    try:
        yield members
    finally:
        await members.close()
        await server.stop(None)


async def cancel_after(ticks: int, task: asyncio.Task[None]) -> None:
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,), timeout=WAIT_SECONDS)
    assert task.cancelled(), f"cancelled after {ticks} turns, it goes on"


def test_a_watch_ends_at_whatever_moment_it_is_cancelled() -> None:
    async def scenario() -> None:
        async with members_that_end_every_stream() as members:
            for ticks in MOMENTS:
                mailbox = Mailbox()
                watching = asyncio.create_task(EtcdWatch(members, "/", mailbox).run())
                await mailbox.next()
                await cancel_after(ticks, watching)

    asyncio.run(scenario())


def test_the_keeper_of_a_lease_ends_at_whatever_moment_it_is_cancelled() -> None:
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(work, name=name))
        return tasks[-1]

    async def scenario() -> None:
        async with members_that_end_every_stream() as members:
            for ticks in MOMENTS:
                await EtcdLease(members, 0).begin(spawn)  # of no length: kept alive at once
                await cancel_after(ticks, tasks[-1])

    asyncio.run(scenario())


def test_work_that_does_not_end_is_left_after_the_deadline_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def stubborn(released: asyncio.Event) -> None:
        try:
            await released.wait()
        except asyncio.CancelledError:
            await released.wait()

    async def scenario() -> None:
        released = asyncio.Event()
        task = background.begin(stubborn(released), "stubborn work")
        await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_SECONDS):
            await background.end((task,), seconds=0.05)
        assert not task.done()
        released.set()
        await task

    asyncio.run(scenario())
    assert caplog.messages == ["stubborn work did not end within 0.05 s of its cancellation"]


def test_a_fault_of_background_work_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def faulty() -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        await asyncio.wait((background.begin(faulty(), "faulty work"),), timeout=WAIT_SECONDS)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert caplog.messages == ["faulty work failed, and has ended"]
    assert "ZeroDivisionError" in caplog.text
