"""Members that are dead, frozen or silent, and endpoints that make no sense."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing, asynccontextmanager
from pathlib import Path

import pytest

from crowfly.store import Snapshot, Store, StoreError, open_store
from crowfly.store.embedded import EmbeddedEtcd

WAIT_SECONDS = 15.0

Freezer = Callable[[int], AbstractContextManager[None]]  # of a pid


@asynccontextmanager
async def opened(endpoints: str) -> AsyncGenerator[Store, None]:
    store = open_store(endpoints)
    try:
        yield store
    finally:
        await store.close()


def test_no_call_waits_for_an_etcd_that_is_away() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
            endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
            async with opened(endpoint) as store, asyncio.timeout(WAIT_SECONDS):
                with pytest.raises(StoreError, match=endpoint):
                    await store.read("/")
                with pytest.raises(StoreError, match=endpoint):
                    await store.put("/a", b"")
                with pytest.raises(StoreError, match=endpoint):
                    await store.swap("/a", None, b"")
                lease = await store.lease(5)
                with pytest.raises(StoreError, match="lease"):
                    await lease.put("/a", b"")
                await lease.revoke()

    asyncio.run(scenario())


@pytest.mark.etcd
def test_a_dead_member_is_left_for_one_that_answers(shared_etcd_of_each: str, prefix: str) -> None:
    async def scenario() -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # bound and not listening: refused
            dead = f"127.0.0.1:{nobody.getsockname()[1]}"
            for work in ("put", "swap", "read", "watch"):
                async with opened(f"{dead},http://{shared_etcd_of_each}/") as store:
                    match work:
                        case "put":
                            await store.put(prefix + "a", b"1")
                        case "swap":
                            assert await store.swap(prefix + "a", b"1", b"2")
                        case "read":
                            assert await store.read(prefix) == {prefix + "a": b"2"}
                        case "watch":
                            async with (
                                aclosing(store.watch(prefix)) as events,
                                asyncio.timeout(WAIT_SECONDS),
                            ):
                                assert await anext(events) == Snapshot({prefix + "a": b"2"})

    asyncio.run(scenario())


@pytest.mark.etcd
def test_a_frozen_member_is_left_for_one_that_answers(
    etcd_binary: Path, tmp_path: Path, frozen: Freezer
) -> None:
    async def scenario() -> None:
        one = EmbeddedEtcd(tmp_path / "one", etcd_binary)
        other = EmbeddedEtcd(tmp_path / "other", etcd_binary)
        async with one as first, other as second, opened(f"{first},{second}") as store:
            await store.put("/a", b"first")
            with frozen(one.pid):
                assert await store.read("/") == {}
                await store.put("/a", b"second")
                assert await store.read("/") == {"/a": b"second"}

    asyncio.run(scenario())


@pytest.mark.etcd
def test_a_put_meets_a_member_that_says_nothing_and_is_taken_by_another(
    shared_etcd_of_each: str, prefix: str
) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
            async with opened(f"{endpoint},{shared_etcd_of_each}") as store:
                await store.put(prefix + "a", b"1")
                assert await store.read(prefix) == {prefix + "a": b"1"}

    asyncio.run(scenario())


@pytest.mark.parametrize("endpoints", ["https://etcd:2379", "etcd", "", "a:1,,b:2", "a:x"])
def test_endpoints_that_cannot_be_used_are_refused(endpoints: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        open_store(endpoints)
