"""Puts a worker together around an engine, and takes it apart again."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from crowfly import address, wire
from crowfly.errors import InternalError, Unavailable
from crowfly.service import bind
from crowfly.store.interface import Lease, Store, StoreError
from crowfly.tokenizer import Tokenizer
from crowfly.v1 import worker_pb2, worker_pb2_grpc
from crowfly_worker import report
from crowfly_worker.agent_link import AgentLink
from crowfly_worker.changes import Changes
from crowfly_worker.control import Control
from crowfly_worker.engine.port import Engine
from crowfly_worker.engine.thread import EngineThread
from crowfly_worker.report import Identity
from crowfly_worker.reporter import Reporter
from crowfly_worker.reservations import Reservations
from crowfly_worker.router import Router
from crowfly_worker.server import WorkerService
from crowfly_worker.settings import WorkerSettings
from crowfly_worker.streams import Streams

_GOODBYE_SECONDS = 0.2  # for last messages to leave; control streams are cut then
_STEP_SECONDS = 10.0  # for the engine's last step

_log = logging.getLogger(__name__)


class EngineFailed(Exception):
    """The engine's thread ended by an error of ours; the worker must not go on."""


class EngineStuck(Exception):
    """The engine's last step did not end in time; its thread ends with the process."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One that serves."""

    registration: worker_pb2.WorkerRegistration
    lease: Lease
    reservations: Reservations
    router: Router
    changes: Changes

    async def drain(self, seconds: float, now: asyncio.Event) -> None:
        """Take nothing new, leave the map, and return when all that was promised is done, after
        `seconds`, or when `now` is set; what is left then ends with `Unavailable`."""
        self.reservations.drain()
        await self.lease.revoke()
        idle = self.changes.until(lambda: not self.reservations and not self.router)
        waits = [asyncio.ensure_future(wait) for wait in (idle, now.wait())]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
        self.router.end_all(Unavailable("the worker stopped before the answer was done"))


@asynccontextmanager
async def serve(
    engine: Engine, tokenizer: Tokenizer, model: str, settings: WorkerSettings, store: Store
) -> AsyncIterator[Worker]:
    """A worker that serves and is registered, until the block ends. `model` is the served name.

    Without a store it serves all the same and registers when the store appears. Raises
    `SettingsError` if the port is taken, a group with `EngineFailed` into the block if the engine
    dies (its streams have then ended with `InternalError`), and `EngineStuck` after the block.
    """
    identity = _identity(settings.node, model, engine.facts.device_uuid)
    changes = Changes()
    router = Router(changes)
    reservations = Reservations(engine, changes, router)
    reporter = Reporter(identity, engine, reservations)
    streams = Streams(identity.worker_id, engine, tokenizer, reservations, router, changes)
    service = WorkerService(
        streams, lambda write: Control(reservations, reporter, changes, write), tokenizer
    )
    async with (
        _engine_running(engine, router) as failure,
        _listening(service, settings) as told,
    ):
        registration = report.registration(identity, engine.facts, told, tokenizer.sha256)
        async with _registered(registration, store) as lease, asyncio.TaskGroup() as tasks:
            link = tasks.create_task(AgentLink(settings.node, store, reporter, changes).run())
            watch = tasks.create_task(_end_with(failure, router))
            yield Worker(registration, lease, reservations, router, changes)
            link.cancel()
            watch.cancel()
    reservations.close_all()


def _identity(node: str, model: str, device_uuid: str | None) -> Identity:
    return Identity(
        worker_id=f"{node}-{secrets.token_hex(4)}",
        epoch=secrets.token_hex(8),
        node=node,
        model=model,
        device_uuid=device_uuid or f"CPU-{node}",
    )


@asynccontextmanager
async def _engine_running(
    engine: Engine, router: Router
) -> AsyncIterator[asyncio.Future[Exception]]:
    """Yields a future of the error that ended the engine's thread, if one does."""
    loop = asyncio.get_running_loop()
    failure: asyncio.Future[Exception] = loop.create_future()

    def fail(error: Exception) -> None:
        loop.call_soon_threadsafe(failure.set_result, error)

    thread = EngineThread(engine, router.deliver, fail)
    thread.start()
    try:
        yield failure
    finally:
        try:
            await asyncio.to_thread(thread.stop, _STEP_SECONDS)
        except TimeoutError as error:
            raise EngineStuck(str(error)) from error


async def _end_with(failure: asyncio.Future[Exception], router: Router) -> None:
    error = await asyncio.shield(failure)
    router.end_all(InternalError("the worker's engine failed; its log has the details"))
    raise EngineFailed(f"the engine's thread ended: {error!r}") from error


@asynccontextmanager
async def _listening(service: WorkerService, settings: WorkerSettings) -> AsyncIterator[str]:
    """The address to tell others."""
    server = grpc.aio.server(options=wire.SERVER_OPTIONS)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(service, server)
    port = bind(server, settings.listen)
    await server.start()
    try:
        yield str(address.advertised(settings.listen, port, settings.advertise))
    finally:
        await server.stop(_GOODBYE_SECONDS)


@asynccontextmanager
async def _registered(
    registration: worker_pb2.WorkerRegistration, store: Store
) -> AsyncIterator[Lease]:
    lease = await store.lease(wire.LEASE_SECONDS)
    try:
        try:
            await lease.put(wire.WORKERS + registration.worker_id, registration.SerializeToString())
        except StoreError as error:
            _log.warning("not registered yet, the store is away: %s", error)
        yield lease
    finally:
        await lease.revoke()
