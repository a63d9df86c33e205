"""A lease on a real etcd that is frozen, wiped, or takes the lease away."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from pathlib import Path

import grpc.aio
import pytest

from crowfly.store import Store, StoreError, open_store
from crowfly.store.embedded import EmbeddedEtcd
from crowfly.store.etcd_pb2 import LeaseRevokeRequest, RangeRequest
from crowfly.store.etcd_pb2_grpc import KVStub, LeaseStub

pytestmark = pytest.mark.etcd

WAIT_SECONDS = 15.0

Freezer = Callable[[int], AbstractContextManager[None]]  # of a pid
LONG_SECONDS = 120  # kept alive every 40 s: what happens sooner was not waited for


@asynccontextmanager
async def opened(endpoints: str) -> AsyncGenerator[Store, None]:
    store = open_store(endpoints)
    try:
        yield store
    finally:
        await store.close()


async def until_it_reads(store: Store, prefix: str, expected: dict[str, bytes]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with suppress(StoreError):
                if await store.read(prefix) == expected:
                    return
            await asyncio.sleep(0.02)


async def take_away_lease_of(key: str, endpoint: str) -> None:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        found = await KVStub(channel).Range(RangeRequest(key=key.encode()), timeout=5)
        request = LeaseRevokeRequest(ID=found.kvs[0].lease)
        await LeaseStub(channel).LeaseRevoke(request, timeout=5)


def test_a_put_that_finds_the_lease_lost_brings_everything_back_at_once(
    shared_etcd_of_each: str, prefix: str
) -> None:
    async def scenario() -> None:
        async with opened(shared_etcd_of_each) as store:
            lease = await store.lease(LONG_SECONDS)
            await lease.put(prefix + "a", b"1")
            await lease.put(prefix + "b", b"1")
            await take_away_lease_of(prefix + "a", shared_etcd_of_each)
            with pytest.raises(StoreError, match="lease not found"):
                await lease.put(prefix + "a", b"2")
            await until_it_reads(store, prefix, {prefix + "a": b"2", prefix + "b": b"1"})
            await lease.revoke()
            assert await store.read(prefix) == {}

    asyncio.run(scenario())


def test_keys_are_put_again_when_etcd_lost_its_data(etcd_binary: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        etcd = EmbeddedEtcd(tmp_path, etcd_binary)
        async with etcd as endpoint, opened(endpoint) as store:
            lease = await store.lease(2)
            await lease.put("/a", b"1")
            shutil.rmtree(etcd.data)
            os.kill(etcd.pid, signal.SIGKILL)
            await until_it_reads(store, "/", {"/a": b"1"})
            await lease.revoke()
            assert await store.read("/") == {}

    asyncio.run(scenario())


def test_a_lease_asked_of_a_frozen_etcd_is_granted_when_it_thaws(
    etcd_binary: Path, tmp_path: Path, frozen: Freezer
) -> None:
    async def scenario() -> None:
        etcd = EmbeddedEtcd(tmp_path, etcd_binary)
        async with etcd as endpoint, opened(endpoint) as store:
            with frozen(etcd.pid):
                lease = await store.lease(LONG_SECONDS)
                with pytest.raises(StoreError):
                    await lease.put("/a", b"old")
                with pytest.raises(StoreError):
                    await lease.put("/a", b"new")
            await until_it_reads(store, "/", {"/a": b"new"})

    asyncio.run(scenario())


def test_a_value_that_could_not_be_put_is_put_when_etcd_is_back(
    etcd_binary: Path, tmp_path: Path, frozen: Freezer
) -> None:
    async def scenario() -> None:
        etcd = EmbeddedEtcd(tmp_path, etcd_binary)
        async with etcd as endpoint, opened(endpoint) as store:
            lease = await store.lease(LONG_SECONDS)
            await lease.put("/a", b"old")
            with frozen(etcd.pid), pytest.raises(StoreError):
                await lease.put("/a", b"new")
            await until_it_reads(store, "/", {"/a": b"new"})

    asyncio.run(scenario())


def test_a_lease_outlives_its_length_and_ends_with_its_owner(
    shared_etcd_of_each: str, prefix: str
) -> None:
    async def scenario() -> None:
        async with opened(shared_etcd_of_each) as store:
            lease, forgotten = await store.lease(1), open_store(shared_etcd_of_each)
            await lease.put(prefix + "kept", b"")
            await (await forgotten.lease(1)).put(prefix + "forgotten", b"")
            await forgotten.close()
            # etcd itself is the clock: a lease as long as ours, and nobody to keep it, has ended.
            await until_it_reads(store, prefix, {prefix + "kept": b""})
            await lease.revoke()

    asyncio.run(scenario())
