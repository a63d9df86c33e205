"""A watch on a real etcd that is killed, frozen, compacted and wiped."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, suppress
from pathlib import Path

import grpc.aio
import pytest

from crowfly.store import (
    Change,
    Lost,
    Restored,
    Snapshot,
    Store,
    StoreError,
    WatchEvent,
    open_store,
)
from crowfly.store.embedded import EmbeddedEtcd
from crowfly.store.etcd_pb2 import RangeRequest
from crowfly.store.etcd_pb2_grpc import KVStub

pytestmark = pytest.mark.etcd

WAIT_SECONDS = 15.0

Freezer = Callable[[int], AbstractContextManager[None]]  # of a pid


class Cable:
    """A TCP relay to an etcd, which can be cut and mended."""

    def __init__(self, endpoint: str) -> None:
        self._target = endpoint.rpartition(":")
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def laid(self) -> AsyncGenerator[str, None]:
        """The near end's endpoint."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            self.cut()
            server.close()

    def cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.close()

    def mend(self) -> None:
        self._is_cut = False

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target
        if self._is_cut:
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        self._writers.add(sink)
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        sink.close()
        self._writers.discard(sink)


@asynccontextmanager
async def opened(endpoints: str) -> AsyncGenerator[Store, None]:
    store = open_store(endpoints)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def watching(
    endpoint: str, prefix: str
) -> AsyncGenerator[AsyncGenerator[WatchEvent, None], None]:
    async with opened(endpoint) as store, aclosing(store.watch(prefix)) as events:
        yield events


async def soon(events: AsyncGenerator[WatchEvent, None]) -> WatchEvent:
    async with asyncio.timeout(WAIT_SECONDS):
        return await anext(events)


async def put(store: Store, key: str, value: bytes) -> None:
    """As often as it takes."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with suppress(StoreError):
                return await store.put(key, value)
            await asyncio.sleep(0.05)


async def compact(endpoint: str) -> None:
    """Forget the whole history. `CompactionRequest` is `int64 revision = 1`."""
    async with grpc.aio.insecure_channel(endpoint) as channel:
        answer = await KVStub(channel).Range(RangeRequest(key=b"/"), timeout=5)
        assert answer.header.revision < 128  # one byte on the wire
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/etcdserverpb.KV/Compact"
        )
        await method(b"\x08" + bytes([answer.header.revision]), timeout=5)


def test_a_watch_misses_nothing_when_etcd_is_killed_and_comes_back(
    etcd_binary: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        etcd = EmbeddedEtcd(tmp_path, etcd_binary)
        async with etcd as endpoint, opened(endpoint) as store, opened(endpoint) as other:
            await store.put("/a/1", b"before")
            async with aclosing(store.watch("/a/")) as events:
                assert await soon(events) == Snapshot({"/a/1": b"before"})
                os.kill(etcd.pid, signal.SIGKILL)
                assert isinstance(await soon(events), Lost)
                await put(other, "/a/1", b"after")
                await put(other, "/a/2", b"new")
                told = [await soon(events) for _ in range(3)]
                assert told == [Restored(), Change("/a/1", b"after"), Change("/a/2", b"new")]

    asyncio.run(scenario())


def test_a_watch_goes_on_from_its_last_change_after_the_connection_broke(
    etcd_binary: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with EmbeddedEtcd(tmp_path, etcd_binary) as endpoint, opened(endpoint) as store:
            cable = Cable(endpoint)
            async with cable.laid() as near, watching(near, "/a/") as events:
                assert await soon(events) == Snapshot({})
                await store.put("/a/1", b"1")
                assert await soon(events) == Change("/a/1", b"1")
                cable.cut()
                assert isinstance(await soon(events), Lost)
                await store.swap("/a/1", b"1", None)
                await store.put("/a/2", b"2")
                cable.mend()
                told = [await soon(events) for _ in range(3)]
                assert told == [Restored(), Change("/a/1", None), Change("/a/2", b"2")]

    asyncio.run(scenario())


def test_a_watch_lists_again_when_the_history_it_missed_was_compacted(
    etcd_binary: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with EmbeddedEtcd(tmp_path, etcd_binary) as endpoint, opened(endpoint) as store:
            cable = Cable(endpoint)
            await store.put("/a/1", b"1")
            async with cable.laid() as near, watching(near, "/a/") as events:
                assert await soon(events) == Snapshot({"/a/1": b"1"})
                cable.cut()
                assert isinstance(await soon(events), Lost)
                await store.swap("/a/1", b"1", None)
                await store.put("/a/2", b"2")
                await compact(endpoint)
                cable.mend()
                assert await soon(events) == Snapshot({"/a/2": b"2"})
                await store.put("/a/3", b"3")
                assert await soon(events) == Change("/a/3", b"3")

    asyncio.run(scenario())


@pytest.mark.parametrize("new_changes", [1, 20], ids=["shorter", "longer"])
def test_a_watch_lists_again_when_the_data_was_deleted(
    etcd_binary: Path, tmp_path: Path, new_changes: int
) -> None:
    async def scenario() -> None:
        etcd = EmbeddedEtcd(tmp_path, etcd_binary)
        async with etcd as endpoint, opened(endpoint) as store:
            cable = Cable(endpoint)
            for number in range(5):
                await store.put(f"/old/{number}", b"")
            async with cable.laid() as near, watching(near, "/") as events:
                assert await soon(events) == Snapshot({f"/old/{n}": b"" for n in range(5)})
                cable.cut()
                assert isinstance(await soon(events), Lost)
                shutil.rmtree(etcd.data)
                os.kill(etcd.pid, signal.SIGKILL)
                for number in range(new_changes):
                    await put(store, f"/new/{number}", b"")
                cable.mend()
                expected = {f"/new/{number}": b"" for number in range(new_changes)}
                assert await soon(events) == Snapshot(expected)

    asyncio.run(scenario())


def test_a_frozen_etcd_is_noticed_and_the_watch_goes_on_when_it_thaws(
    etcd_binary: Path, tmp_path: Path, frozen: Freezer
) -> None:
    async def scenario() -> None:
        etcd = EmbeddedEtcd(tmp_path, etcd_binary)
        async with (
            etcd as endpoint,
            opened(endpoint) as store,
            watching(endpoint, "/a/") as events,
        ):
            assert await soon(events) == Snapshot({})
            with frozen(etcd.pid):
                lost = await soon(events)
                assert isinstance(lost, Lost)
                assert endpoint in lost.reason
                with pytest.raises(StoreError, match=endpoint):
                    await store.put("/b", b"")
            assert await soon(events) == Restored()
            await put(store, "/a/1", b"1")
            assert await soon(events) == Change("/a/1", b"1")

    asyncio.run(scenario())


def test_a_watch_says_lost_until_an_etcd_that_is_late_answers(
    etcd_binary: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with EmbeddedEtcd(tmp_path, etcd_binary) as endpoint:
            cable = Cable(endpoint)
            cable.cut()
            async with cable.laid() as near, watching(near, "/a/") as events:
                assert isinstance(await soon(events), Lost)
                cable.mend()
                assert await soon(events) == Snapshot({})

    asyncio.run(scenario())
