"""The dispatcher's test stage: a real dispatcher before scripted workers that speak real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

from crowfly import wire
from crowfly.store import MemoryStore
from crowfly.v1.common_pb2 import KERNEL_RUNG_TORCH, PRECISION_FP32, Model, WorkerReport
from crowfly.v1.dispatcher_pb2 import (
    GetClusterRequest,
    GetClusterResponse,
    PlaceRequest,
    PlaceResponse,
    WorkerState,
)
from crowfly.v1.dispatcher_pb2_grpc import DispatcherServiceStub
from crowfly.v1.worker_pb2 import (
    REFUSAL_REASON_NO_PAGES,
    Capacity,
    ControlRequest,
    ControlResponse,
    OpenStream,
    RefusalReason,
    StreamOpened,
    StreamRefused,
    WorkerRegistration,
)
from crowfly.v1.worker_pb2_grpc import (
    WorkerServiceServicer,
    add_WorkerServiceServicer_to_server,
)
from crowfly_dispatcher.__main__ import serve

DEADLINE_SECONDS = 20.0
Outbox = asyncio.Queue[ControlResponse | None]  # None: the worker ends the stream


class FadingStore(MemoryStore):
    """A store that can be away."""

    def fade(self) -> None:
        for mailbox in self._watchers:
            mailbox.lost("unplugged")

    def come_back(self) -> None:
        for mailbox in self._watchers:
            mailbox.restored()

    def come_back_with(self, items: Mapping[str, bytes]) -> None:
        """As after a loss of data: everybody lists again."""
        self._items = dict(items)
        for mailbox, prefix in self._watchers.items():
            mailbox.snapshot(self._under(prefix))


class ScriptedWorker(WorkerServiceServicer):
    """Speaks the control stream of a real worker, as its attributes tell it to. It starts honest:
    a claim is taken if its pages are free."""

    def __init__(self, id: str, epoch: str = "e0", *, pages: int = 100, **facts: Any) -> None:
        self.registration = WorkerRegistration(
            worker_id=id,
            epoch=epoch,
            node="n0",
            device_uuid="CPU-n0",
            model=Model(
                name=facts.get("model", "m"),
                context_tokens=facts.get("context_tokens", 1024),
                vocab_size=256,
                tokenizer_sha256="00",
            ),
            precision=facts.get("precision", PRECISION_FP32),
            kernel=KERNEL_RUNG_TORCH,
            page_tokens=16,
            total_pages=pages,
            page_bytes=1024,
        )
        self.report = WorkerReport(
            worker_id=id, epoch=epoch, free_pages=pages, largest_free_run_pages=pages
        )
        self.answer: Callable[[OpenStream], ControlResponse | None] = self.take
        self.hellos: list[str] = []
        self.opens: list[OpenStream] = []
        self.closes: list[str] = []
        self.mute = False  # no reports
        self.streams: dict[Outbox, int] = {}  # with the last claim of each
        self._server: grpc.aio.Server | None = None
        self._port = 0

    async def start(self) -> None:
        """Listen; after `die`, on the same port again."""
        self._server = grpc.aio.server(options=wire.SERVER_OPTIONS)
        add_WorkerServiceServicer_to_server(self, self._server)
        self._port = self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        self.registration.address = f"127.0.0.1:{self._port}"
        await self._server.start()

    async def die(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def say(self, **changes: Any) -> None:
        """A report on every control stream, after these changes."""
        for field, value in changes.items():
            setattr(self.report, field, value)
        self.report.sequence += 1
        for outbox in self.streams:
            self._report(outbox)

    def hang_up(self) -> None:
        for outbox in self.streams:
            outbox.put_nowait(None)

    def take(self, claim: OpenStream) -> ControlResponse:
        pages = -(-(claim.prompt_tokens + claim.max_tokens - 1) // 16)
        if pages > self.report.free_pages:
            return self.refuse(claim)
        self.report.free_pages -= pages
        self.report.largest_free_run_pages = self.report.free_pages
        opened = StreamOpened(reservation_id=claim.reservation_id, expires_in_ms=5000)
        return ControlResponse(opened=opened)

    def refuse(
        self,
        claim: OpenStream,
        reason: RefusalReason.ValueType = REFUSAL_REASON_NO_PAGES,
    ) -> ControlResponse:
        refused = StreamRefused(
            reservation_id=claim.reservation_id,
            reason=reason,
            message="as scripted",
            free_pages=self.report.free_pages,
        )
        return ControlResponse(refused=refused)

    def ignore(self, claim: OpenStream) -> None:
        """Never answer."""

    async def Control(
        self, request_iterator: AsyncIterator[ControlRequest], context: Any
    ) -> AsyncIterator[ControlResponse]:
        outbox: Outbox = asyncio.Queue()
        self.streams[outbox] = 0
        tasks = [
            asyncio.create_task(self._hear(request_iterator, outbox)),
            asyncio.create_task(self._beat(outbox)),
        ]
        try:
            while (response := await outbox.get()) is not None:
                yield response
        finally:
            del self.streams[outbox]
            for task in tasks:
                task.cancel()

    async def GetTokenizer(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    def Generate(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    async def _hear(self, requests: AsyncIterator[ControlRequest], outbox: Outbox) -> None:
        async for request in requests:
            match request.WhichOneof("message"):
                case "hello":
                    self.hellos.append(request.hello.dispatcher_id)
                case "open":
                    self._opened(request.open, outbox)
                case "close":
                    self.closes.append(request.close.reservation_id)

    def _opened(self, claim: OpenStream, outbox: Outbox) -> None:
        self.opens.append(claim)
        answer = self.answer(claim)
        if answer is not None:
            self.streams[outbox] = claim.sequence
            outbox.put_nowait(answer)
            self.say()

    async def _beat(self, outbox: Outbox) -> None:
        while True:
            self.report.sequence += 1
            self._report(outbox)
            await asyncio.sleep(wire.HEARTBEAT_SECONDS)

    def _report(self, outbox: Outbox) -> None:
        if not self.mute:
            capacity = Capacity(applied_sequence=self.streams[outbox])
            capacity.report.CopyFrom(self.report)
            outbox.put_nowait(ControlResponse(capacity=capacity))


class Dispatcher:
    """A real one, in this process, behind a real gRPC server."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = DispatcherServiceStub(channel)

    async def place(self, **fields: Any) -> PlaceResponse:
        """Raises `AioRpcError`."""
        fields = {"model": "m", "prompt_tokens": 10, "max_tokens": 7, **fields}
        return await self.stub.Place(PlaceRequest(**fields), timeout=DEADLINE_SECONDS)

    async def refused(self, **fields: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.place(**fields)
        return caught.value.code(), caught.value.details() or ""

    async def cluster(self) -> GetClusterResponse:
        return await self.stub.GetCluster(GetClusterRequest(), timeout=DEADLINE_SECONDS)

    async def until(self, true: Callable[[GetClusterResponse], bool]) -> GetClusterResponse:
        """The first picture of the cluster for which `true` holds."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                if true(picture := await self.cluster()):
                    return picture
                await asyncio.sleep(0.005)

    async def until_state(self, worker_id: str, state: WorkerState.ValueType) -> None:
        await self.until(
            lambda picture: (
                state in [w.state for w in picture.workers if w.registration.worker_id == worker_id]
            )
        )


class Stage:
    """A store, a dispatcher, and the workers that a test adds."""

    def __init__(self, store: FadingStore, exits: AsyncExitStack) -> None:
        self.store = store
        self._exits = exits

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Dispatcher]:
        async with serve(self.store, "127.0.0.1:0") as address:
            channel = grpc.aio.insecure_channel(str(address))
            yield Dispatcher(await self._exits.enter_async_context(channel))

    async def dispatcher(self) -> Dispatcher:
        """One that serves until the scene ends."""
        return await self._exits.enter_async_context(self.serving())

    async def worker(self, id: str = "w0", epoch: str = "e0", **facts: Any) -> ScriptedWorker:
        """One that listens and is registered."""
        worker = ScriptedWorker(id, epoch, **facts)
        await worker.start()
        self._exits.push_async_callback(worker.die)
        await self.register(worker)
        return worker

    async def register(self, worker: ScriptedWorker) -> None:
        key = wire.WORKERS + worker.registration.worker_id
        await self.store.put(key, worker.registration.SerializeToString())

    async def unregister(self, id: str) -> None:
        key = wire.WORKERS + id
        await self.store.swap(key, (await self.store.read(key))[key], None)


@asynccontextmanager
async def _staged() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as exits:
        yield Stage(FadingStore(), exits)


@pytest.fixture
def play() -> Callable[[Callable[[Stage], Awaitable[None]]], None]:
    """Runs a scene on a fresh stage."""

    def run(scene: Callable[[Stage], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with _staged() as stage:
                await scene(stage)

        asyncio.run(whole())

    return run
