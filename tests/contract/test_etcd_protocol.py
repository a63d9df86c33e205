"""What etcd may say, but cannot be made to say on demand: a real gRPC server with a script."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import grpc
import grpc.aio

from crowfly.store import Change, Lost, Restored, Snapshot, WatchEvent, open_store
from crowfly.store.etcd_pb2 import (
    Event,
    KeyValue,
    RangeRequest,
    RangeResponse,
    ResponseHeader,
    WatchRequest,
    WatchResponse,
)

WAIT_SECONDS = 10.0
CREATED = WatchResponse(created=True)


class ScriptedEtcd:
    """Each list says how many lists there were; each watch says its lines, then nothing."""

    def __init__(self, *scripts: Sequence[WatchResponse]) -> None:
        self._scripts = iter(scripts)
        self._lists = 0
        self.starts: list[int] = []  # the first revision that each watch asked for

    async def range(self, request: RangeRequest, context: object) -> RangeResponse:
        if request.range_end:
            self._lists += 1
        header = ResponseHeader(cluster_id=1, revision=10 * self._lists)
        return RangeResponse(header=header, kvs=[KeyValue(key=b"/n", value=b"%d" % self._lists)])

    async def watch(
        self, requests: AsyncIterator[WatchRequest], context: object
    ) -> AsyncGenerator[WatchResponse, None]:
        request = await anext(requests)
        self.starts.append(request.create_request.start_revision)
        for line in next(self._scripts):
            yield line
        async for _ in requests:  # the stream stays open
            pass

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[str, None]:
        server = grpc.aio.server()
        range_handler = grpc.unary_unary_rpc_method_handler(
            self.range,
            request_deserializer=RangeRequest.FromString,
            response_serializer=RangeResponse.SerializeToString,
        )
        watch_handler = grpc.stream_stream_rpc_method_handler(
            self.watch,
            request_deserializer=WatchRequest.FromString,
            response_serializer=WatchResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("etcdserverpb.KV", {"Range": range_handler}),
                grpc.method_handlers_generic_handler(
                    "etcdserverpb.Watch", {"Watch": watch_handler}
                ),
            )
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(None)


async def heard(etcd: ScriptedEtcd, last: WatchEvent) -> list[WatchEvent]:
    """What a watch tells, up to `last`."""
    told: list[WatchEvent] = []
    async with etcd.serving() as endpoint, asyncio.timeout(WAIT_SECONDS):
        store = open_store(endpoint)
        async with aclosing(store.watch("/")) as events:
            while last not in told:
                told.append(await anext(events))
        await store.close()
    return told


def changes(*events: Event) -> WatchResponse:
    return WatchResponse(events=events)


def put(key: bytes, value: bytes, revision: int) -> Event:
    return Event(type=Event.PUT, kv=KeyValue(key=key, value=value, mod_revision=revision))


def test_a_watch_cancelled_by_compaction_lists_again_though_its_stream_stays_open() -> None:
    compacted = WatchResponse(canceled=True, compact_revision=15)
    etcd = ScriptedEtcd([CREATED, compacted], [CREATED, changes(put(b"/z", b"", 21))])
    told = asyncio.run(heard(etcd, Change("/z", b"")))
    assert told == [Snapshot({"/n": b"1"}), Snapshot({"/n": b"2"}), Change("/z", b"")]
    assert etcd.starts == [11, 21]


def test_created_and_canceled_together_is_a_refusal() -> None:
    refused = WatchResponse(created=True, canceled=True, cancel_reason="permission denied")
    etcd = ScriptedEtcd([refused], [CREATED, changes(put(b"/z", b"", 11))])
    told = asyncio.run(heard(etcd, Change("/z", b"")))
    lost = told[1]
    assert isinstance(lost, Lost)
    assert "permission denied" in lost.reason
    assert told == [Snapshot({"/n": b"1"}), lost, Restored(), Change("/z", b"")]
    assert etcd.starts == [11, 11]


def test_fragments_are_told_together_or_asked_for_again() -> None:
    half = WatchResponse(fragment=True, events=[put(b"/a", b"1", 11)])
    rest = changes(put(b"/b", b"1", 12))
    broken = WatchResponse(canceled=True, cancel_reason="broken")
    etcd = ScriptedEtcd(
        [CREATED, half, broken],
        [CREATED, half, rest, broken],
        [CREATED, changes(put(b"/z", b"", 13))],
    )
    told = asyncio.run(heard(etcd, Change("/z", b"")))
    changed = [event for event in told if isinstance(event, Change)]
    assert changed == [Change("/a", b"1"), Change("/b", b"1"), Change("/z", b"")]
    assert etcd.starts == [11, 11, 13]
