"""What every store promises: the same tests for memory and for real etcd programs."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

import grpc.aio
import pytest

from crowfly.store import (
    Change,
    Lease,
    MemoryStore,
    Snapshot,
    Store,
    StoreError,
    WatchEvent,
    open_store,
)
from crowfly.store.etcd_pb2 import LeaseRevokeRequest, RangeRequest
from crowfly.store.etcd_pb2_grpc import KVStub, LeaseStub
from crowfly.store.memory import MemoryLease

WAIT_SECONDS = 10.0


class Backend(Protocol):
    def open(self) -> Store:
        """A client; all clients see the same data."""

    async def lose(self, lease: Lease, key: str) -> None:
        """End `lease`, which holds `key`, behind its owner's back."""


class Memory:
    def __init__(self) -> None:
        self._store = MemoryStore()

    def open(self) -> Store:
        return self._store

    async def lose(self, lease: Lease, key: str) -> None:
        assert isinstance(lease, MemoryLease)
        self._store.expire(lease)


class Etcd:
    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def open(self) -> Store:
        return open_store(self._endpoint)

    async def lose(self, lease: Lease, key: str) -> None:
        async with grpc.aio.insecure_channel(self._endpoint) as channel:
            found = await KVStub(channel).Range(RangeRequest(key=key.encode()), timeout=5)
            request = LeaseRevokeRequest(ID=found.kvs[0].lease)
            await LeaseStub(channel).LeaseRevoke(request, timeout=5)


@pytest.fixture(
    params=[
        "memory",
        pytest.param("debian", marks=pytest.mark.etcd),
        pytest.param("wheel", marks=pytest.mark.etcd),
    ]
)
def backend(request: pytest.FixtureRequest, shared_etcd: Callable[[str], str]) -> Backend:
    return Memory() if request.param == "memory" else Etcd(shared_etcd(request.param))


@asynccontextmanager
async def opened(backend: Backend) -> AsyncGenerator[Store, None]:
    store = backend.open()
    try:
        yield store
    finally:
        await store.close()


async def soon(events: AsyncGenerator[WatchEvent, None]) -> WatchEvent:
    async with asyncio.timeout(WAIT_SECONDS):
        return await anext(events)


def test_read_returns_the_keys_under_the_prefix_alone(backend: Backend, prefix: str) -> None:
    async def scenario() -> None:
        async with opened(backend) as store:
            await store.put(prefix + "a/1", b"one")
            await store.put(prefix + "a/2", b"")
            await store.put(prefix + "b", b"three")
            await store.put(prefix + "a/1", b"uno")
            assert await store.read(prefix + "a/") == {prefix + "a/1": b"uno", prefix + "a/2": b""}
            assert await store.read(prefix + "c") == {}

    asyncio.run(scenario())


def test_swap_creates_replaces_and_deletes(backend: Backend, prefix: str) -> None:
    async def scenario() -> None:
        async with opened(backend) as store:
            key = prefix + "leader"
            assert await store.swap(key, None, b"me")
            assert await store.read(prefix) == {key: b"me"}
            assert await store.swap(key, b"me", b"you")
            assert await store.read(prefix) == {key: b"you"}
            assert await store.swap(key, b"you", None)
            assert await store.read(prefix) == {}

    asyncio.run(scenario())


def test_swap_changes_nothing_if_the_value_is_another(backend: Backend, prefix: str) -> None:
    async def scenario() -> None:
        async with opened(backend) as store:
            key = prefix + "leader"
            assert not await store.swap(key, b"me", b"you")
            await store.put(key, b"me")
            assert not await store.swap(key, None, b"you")
            assert not await store.swap(key, b"you", None)
            assert await store.read(prefix) == {key: b"me"}

    asyncio.run(scenario())


def test_exactly_one_of_many_racing_swaps_wins(backend: Backend, prefix: str) -> None:
    async def scenario() -> None:
        async with opened(backend) as one, opened(backend) as other:
            names = [b"%d" % number for number in range(16)]
            won = await asyncio.gather(
                *(
                    store.swap(prefix + "leader", None, name)
                    for store, name in zip([one, other] * 8, names, strict=True)
                )
            )
            assert won.count(True) == 1
            assert await one.read(prefix) == {prefix + "leader": names[won.index(True)]}

    asyncio.run(scenario())


def test_a_watch_tells_what_is_there_then_every_change_in_order(
    backend: Backend, prefix: str
) -> None:
    async def scenario() -> None:
        async with opened(backend) as store, opened(backend) as other:
            await store.put(prefix + "a", b"1")
            async with aclosing(other.watch(prefix)) as events:
                assert await soon(events) == Snapshot({prefix + "a": b"1"})
                await store.put(prefix + "b", b"2")
                assert await soon(events) == Change(prefix + "b", b"2")
                await store.put("/elsewhere" + prefix, b"0")
                await store.swap(prefix + "a", b"1", None)
                assert await soon(events) == Change(prefix + "a", None)
                await store.put(prefix + "b", b"3")
                assert await soon(events) == Change(prefix + "b", b"3")

    asyncio.run(scenario())


def test_a_slow_watcher_gets_the_newest_values(backend: Backend, prefix: str) -> None:
    async def scenario() -> None:
        async with opened(backend) as store:
            async with aclosing(store.watch(prefix)) as events:
                assert await soon(events) == Snapshot({})
                for number in range(200):
                    await store.put(prefix + "a", b"%d" % number)
                await store.put(prefix + "z", b"last")
                told = [await soon(events)]
                while told[-1] != Change(prefix + "z", b"last"):
                    told.append(await soon(events))
            assert told[-2] == Change(prefix + "a", b"199")
            assert len(told) < 100

    asyncio.run(scenario())


def test_the_keys_of_a_lease_vanish_when_it_is_revoked(backend: Backend, prefix: str) -> None:
    async def scenario() -> None:
        async with opened(backend) as store:
            await store.put(prefix + "stays", b"1")
            lease = await store.lease(60)
            await lease.put(prefix + "goes", b"2")
            async with aclosing(store.watch(prefix)) as events:
                assert await soon(events) == Snapshot(
                    {prefix + "stays": b"1", prefix + "goes": b"2"}
                )
                await lease.revoke()
                assert await soon(events) == Change(prefix + "goes", None)
            with pytest.raises(StoreError, match="revoked"):
                await lease.put(prefix + "goes", b"3")
            assert await store.read(prefix) == {prefix + "stays": b"1"}

    asyncio.run(scenario())


def test_a_lost_lease_is_granted_again_and_its_newest_values_put(
    backend: Backend, prefix: str
) -> None:
    async def scenario() -> None:
        async with opened(backend) as store:
            lease = await store.lease(2)
            await lease.put(prefix + "a", b"old")
            await lease.put(prefix + "a", b"new")
            async with aclosing(store.watch(prefix)) as events:
                assert await soon(events) == Snapshot({prefix + "a": b"new"})
                await backend.lose(lease, prefix + "a")
                assert await soon(events) == Change(prefix + "a", None)
                assert await soon(events) == Change(prefix + "a", b"new")
                await lease.revoke()
                assert await soon(events) == Change(prefix + "a", None)

    asyncio.run(scenario())


def test_a_key_belongs_to_whoever_put_it_last(backend: Backend, prefix: str) -> None:
    async def scenario() -> None:
        async with opened(backend) as store:
            lease = await store.lease(60)
            await lease.put(prefix + "taken", b"1")
            await lease.put(prefix + "swapped", b"1")
            await store.put(prefix + "taken", b"2")
            assert await store.swap(prefix + "swapped", b"1", b"2")
            await lease.revoke()
            assert await store.read(prefix) == {prefix + "taken": b"2", prefix + "swapped": b"2"}

    asyncio.run(scenario())


def test_closing_the_store_ends_its_watches(backend: Backend, prefix: str) -> None:
    async def scenario() -> None:
        store = backend.open()
        async with aclosing(store.watch(prefix)) as events:
            assert await soon(events) == Snapshot({})
            await store.close()
            with pytest.raises(StopAsyncIteration):
                await soon(events)

    asyncio.run(scenario())
