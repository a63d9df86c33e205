"""A real worker on a loopback port, around an engine whose every step the test allows."""

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import grpc
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from crowfly.store import MemoryStore, Store
from crowfly.tokenizer import Tokenizer
from crowfly.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from crowfly_worker.engine.port import (
    Claimed,
    Engine,
    EngineFacts,
    EngineLoad,
    FinishReason,
    RefusalKind,
    Refused,
    SamplingParams,
    StepEvent,
)
from crowfly_worker.settings import WorkerSettings
from crowfly_worker.worker import Worker, serve

WAIT_SECONDS = 20.0  # how long a condition may take on a loaded machine
VOCAB = 256


@dataclass(slots=True)
class Scripted:
    """One sequence of the scripted engine."""

    prompt_tokens: int
    max_tokens: int
    pages: int
    prompt: list[int] | None = None  # None: claimed and not submitted
    made: int = 0
    cancelled: bool = False
    failure: str | None = None


class ScriptedEngine:
    """Answers a prompt that ends in token t with t+1, t+2, ..., one token a step (after 255 comes
    0). Makes a step for each that the test allows."""

    facts = EngineFacts(
        device_uuid=None,
        context_tokens=200,
        vocab_size=VOCAB,
        precision="fp32",
        kernel="torch",
        page_tokens=16,
        total_pages=20,
        page_bytes=1000,
    )

    def __init__(self) -> None:
        self.scattered_pages = 0  # free, but not in the largest run
        self.sampling: dict[str, SamplingParams] = {}
        self._changed = threading.Condition()
        self._allowed = 0.0
        self._broken = False
        self._sequences: dict[str, Scripted] = {}
        self._generated = 0
        self._cancelled = 0

    def allow(self, steps: float) -> None:
        with self._changed:
            self._allowed += steps
            self._changed.notify_all()

    def fail(self, reason: str) -> None:
        """Everything that runs fails at the next step."""
        with self._changed:
            for sequence in self._running():
                sequence.failure = reason
            self._allowed += 1
            self._changed.notify_all()

    def break_down(self) -> None:
        """The next step raises, as a bug in an engine would."""
        with self._changed:
            self._broken = True
            self._allowed += 1
            self._changed.notify_all()

    def claim(self, id: str, prompt_tokens: int, max_tokens: int) -> Claimed | Refused:
        with self._changed:
            needed = -(-(prompt_tokens + max_tokens) // self.facts.page_tokens)
            if id in self._sequences:
                return Claimed(self._sequences[id].pages)
            if prompt_tokens + max_tokens > self.facts.context_tokens:
                return Refused(RefusalKind.INVALID, "over the context", needed, self._free())
            if needed > self._free():
                return Refused(RefusalKind.NO_PAGES, "not now", needed, self._free())
            self._sequences[id] = Scripted(prompt_tokens, max_tokens, needed)
            return Claimed(needed)

    def release(self, id: str) -> None:
        with self._changed:
            if id in self._sequences and self._sequences[id].prompt is None:
                del self._sequences[id]

    def submit(self, id: str, prompt: Sequence[int], sampling: SamplingParams) -> None:
        with self._changed:
            self._sequences[id].prompt = list(prompt)
            self.sampling[id] = sampling
            self._changed.notify_all()

    def cancel(self, id: str) -> None:
        with self._changed:
            if id in self._sequences:
                self._sequences[id].cancelled = True
                self._changed.notify_all()

    def load(self) -> EngineLoad:
        with self._changed:
            running = self._running()
            return EngineLoad(
                free_pages=self._free(),
                largest_free_run_pages=max(0, self._free() - self.scattered_pages),
                claimed=len(self._sequences) - len(running),
                running=len(running),
                waiting_prompt_tokens=sum(
                    one.prompt_tokens for one in self._sequences.values() if not one.made
                ),
                prefill_tokens_per_s=None,
                step_base_ms=2.5,
                step_per_sequence_ms=None,
                prefilled_tokens_total=0,
                generated_tokens_total=self._generated,
                cancelled_total=self._cancelled,
            )

    def wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(self._has_work, seconds)

    def step(self) -> list[StepEvent]:
        with self._changed:
            if self._broken:
                raise RuntimeError("broken down")
            gone = [id for id, one in self._sequences.items() if one.cancelled]
            events = [self._end(id, (), FinishReason.CANCELLED) for id in gone]
            self._cancelled += len(gone)
            if self._allowed > 0 and self._running():
                self._allowed -= 1
                events += [
                    self._advance(id) for id, one in [*self._sequences.items()] if one.prompt
                ]
            return events

    def _advance(self, id: str) -> StepEvent:
        one = self._sequences[id]
        assert one.prompt is not None
        if one.failure is not None:
            return self._end(id, (), FinishReason.FAILED, one.failure)
        one.made += 1
        self._generated += 1
        token = (one.prompt[-1] + one.made) % VOCAB
        if one.made == one.max_tokens:
            return self._end(id, (token,), FinishReason.LENGTH)
        return StepEvent(id, (token,), first_kernel_at=self._first_kernel(one))

    def _end(
        self, id: str, tokens: tuple[int, ...], finish: FinishReason, error: str | None = None
    ) -> StepEvent:
        one = self._sequences.pop(id)
        return StepEvent(id, tokens, finish, error, self._first_kernel(one))

    def _first_kernel(self, one: Scripted) -> float | None:
        return time.monotonic() if one.made == 1 else None

    def _running(self) -> list[Scripted]:
        return [one for one in self._sequences.values() if one.prompt is not None]

    def _free(self) -> int:
        return self.facts.total_pages - sum(one.pages for one in self._sequences.values())

    def _has_work(self) -> bool:
        running = self._running()
        return any(one.cancelled for one in running) or (bool(running) and self._allowed > 0)


class Dispatcher:
    """One control stream, and what the worker has said on it."""

    def __init__(self, stub: "worker_pb2_grpc.WorkerServiceAsyncStub") -> None:
        self._call = stub.Control()
        self._sequence = itertools.count(1)
        self.capacities: list[worker_pb2.Capacity] = []

    async def hello(self) -> None:
        await self.send(worker_pb2.ControlRequest(hello=worker_pb2.Hello(dispatcher_id="d")))

    async def send(self, request: worker_pb2.ControlRequest) -> None:
        await self._call.write(request)

    async def open(
        self, ticket: str, prompt_tokens: int = 4, max_tokens: int = 12, request_id: str = "r"
    ) -> worker_pb2.StreamOpened | worker_pb2.StreamRefused:
        message = worker_pb2.OpenStream(
            sequence=next(self._sequence),
            reservation_id=ticket,
            request_id=request_id,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
        )
        await self.send(worker_pb2.ControlRequest(open=message))
        answer = await self._read_until(lambda message: not message.HasField("capacity"))
        return answer.opened if answer.HasField("opened") else answer.refused

    async def close(self, ticket: str) -> None:
        message = worker_pb2.CloseStream(reservation_id=ticket)
        await self.send(worker_pb2.ControlRequest(close=message))

    async def capacity(
        self, condition: Callable[[common_pb2.WorkerReport], bool] = lambda report: True
    ) -> worker_pb2.Capacity:
        """The next capacity that meets `condition`."""
        answer = await self._read_until(
            lambda message: message.HasField("capacity") and condition(message.capacity.report)
        )
        return answer.capacity

    async def end(self) -> tuple[grpc.StatusCode, str]:
        """How the worker ended the stream, after all that it said before."""
        async with asyncio.timeout(WAIT_SECONDS):
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in self._call:
                    pass
            return await self._call.code(), await self._call.details()

    async def done_writing(self) -> None:
        await self._call.done_writing()

    async def _read_until(
        self, condition: Callable[[worker_pb2.ControlResponse], bool]
    ) -> worker_pb2.ControlResponse:
        async with asyncio.timeout(WAIT_SECONDS):
            async for message in self._call:
                if message.HasField("capacity"):
                    self.capacities.append(message.capacity)
                if condition(message):
                    return message
        raise AssertionError(f"the control stream ended: {await self._call.details()}")


@dataclass(frozen=True)
class Serving:
    """A worker that serves, and its callers' side."""

    worker: Worker
    engine: Engine
    store: Store
    stub: "worker_pb2_grpc.WorkerServiceAsyncStub"
    _tickets: Iterator[int] = field(default_factory=itertools.count)

    def ticket(self) -> str:
        return f"{next(self._tickets):032x}"

    def silent_dispatcher(self) -> Dispatcher:
        return Dispatcher(self.stub)

    async def dispatcher(self) -> Dispatcher:
        dispatcher = Dispatcher(self.stub)
        await dispatcher.hello()
        return dispatcher

    async def placed(self, prompt_tokens: int = 4, max_tokens: int = 12) -> str:
        """The ticket of a claim that is held now."""
        ticket = self.ticket()
        dispatcher = await self.dispatcher()
        opened = await dispatcher.open(ticket, prompt_tokens, max_tokens)
        assert isinstance(opened, worker_pb2.StreamOpened)
        await dispatcher.done_writing()
        return ticket

    async def idle(self, seconds: float = WAIT_SECONDS) -> None:
        """Returns when the engine and both books are as they were at the start."""
        load = self.engine.load
        await self.eventually(
            lambda: not load().running and not load().claimed and not self.worker.router, seconds
        )
        assert load().free_pages == self.engine.facts.total_pages
        self.worker.reservations.check()

    async def eventually(
        self, condition: Callable[[], bool], seconds: float = WAIT_SECONDS
    ) -> None:
        async with asyncio.timeout(seconds):
            while True:
                if condition():
                    return
                await asyncio.sleep(0.001)


@dataclass(frozen=True)
class Served(Serving):
    """One whose every step the test allows."""

    engine: ScriptedEngine


class ServeEngine(Protocol):
    def __call__(
        self, engine: Engine, tokenizer: Tokenizer
    ) -> AbstractAsyncContextManager[Serving]: ...


class ServeScripted(Protocol):
    def __call__(self, store: Store | None = None) -> AbstractAsyncContextManager[Served]: ...


def alphabet() -> dict[str, int]:
    """A byte-level vocabulary: the token of a byte is its value."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {byte: chr(256 + index) for index, byte in enumerate(others)}
    return {spelled.get(byte, chr(byte)): byte for byte in range(256)}


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=alphabet(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Tokenizer(tokenizer.to_str(), json.dumps({"chat_template": "{{ messages }}"}))


@pytest.fixture
def scripted_engine() -> type[ScriptedEngine]:
    return ScriptedEngine


@pytest.fixture
def serve_engine() -> ServeEngine:
    """`async with serve_engine(engine, tokenizer) as serving`."""

    @asynccontextmanager
    async def start(engine: Engine, tokenizer: Tokenizer) -> AsyncIterator[Serving]:
        store = MemoryStore()
        async with _serving(engine, tokenizer, store) as (worker, stub):
            yield Serving(worker, engine, store, stub)

    return start


@pytest.fixture
def serve_scripted(byte_tokenizer: Tokenizer) -> ServeScripted:
    """`async with serve_scripted() as served`."""

    @asynccontextmanager
    async def start(store: Store | None = None) -> AsyncIterator[Served]:
        engine, kept = ScriptedEngine(), store or MemoryStore()
        async with _serving(engine, byte_tokenizer, kept) as (worker, stub):
            yield Served(worker, engine, kept, stub)

    return start


@asynccontextmanager
async def _serving(
    engine: Engine, tokenizer: Tokenizer, store: Store
) -> AsyncIterator[tuple[Worker, "worker_pb2_grpc.WorkerServiceAsyncStub"]]:
    settings = WorkerSettings(node="n")
    async with (
        serve(engine, tokenizer, "scripted", settings, store) as worker,
        grpc.aio.insecure_channel(worker.registration.address) as channel,
    ):
        yield worker, worker_pb2_grpc.WorkerServiceStub(channel)
