"""One dispatcher's control stream: claims and releases come down, capacity goes up."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager

import grpc

from crowfly import wire
from crowfly.errors import InvalidRequest
from crowfly.v1 import worker_pb2
from crowfly_worker import bounds
from crowfly_worker.changes import Changes
from crowfly_worker.engine.port import RefusalKind, Refused
from crowfly_worker.reporter import Reporter
from crowfly_worker.reservations import Declined, Held, Reservations

_log = logging.getLogger(__name__)

Write = Callable[[worker_pb2.ControlResponse], Awaitable[None]]

_REASONS = {
    RefusalKind.NO_PAGES: worker_pb2.REFUSAL_REASON_NO_PAGES,
    RefusalKind.INVALID: worker_pb2.REFUSAL_REASON_INVALID,
}


class Control:
    """Claims outlive the stream they came by: those without a caller expire by themselves."""

    def __init__(
        self, reservations: Reservations, reporter: Reporter, changes: Changes, write: Write
    ) -> None:
        self._reservations = reservations
        self._reporter = reporter
        self._changes = changes
        self._write = write
        # Held from the moment a message is made until it is written: a capacity never counts a
        # claim whose answer comes after it.
        self._turn = asyncio.Lock()
        self._applied_sequence = 0

    async def run(self, requests: AsyncIterator[worker_pb2.ControlRequest]) -> None:
        """Until the dispatcher ends its side. Raises `InvalidRequest`."""
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._tell())
            fault = await self._listen(requests)
            async with self._turn:  # a write cut off half-way would block the final status
                telling.cancel()
        if fault is not None:
            raise fault  # a task group would wrap it

    async def _listen(
        self, requests: AsyncIterator[worker_pb2.ControlRequest]
    ) -> InvalidRequest | None:
        try:
            with _logged(bounds.hello(await anext(requests))):
                async for request in requests:
                    await self._apply(request)
        except StopAsyncIteration:
            return InvalidRequest("hello: the stream ended without it")
        except InvalidRequest as fault:
            return fault
        except grpc.aio.BaseError:  # this server stops: the end of the stream, too
            return None
        return None

    async def _apply(self, request: worker_pb2.ControlRequest) -> None:
        if request.HasField("open"):
            async with self._turn:
                await self._write(self._open(request.open))
        elif request.HasField("close"):
            field = "close.reservation_id"
            self._reservations.close(bounds.reservation(field, request.close.reservation_id))
        else:
            raise InvalidRequest("message: neither open nor close")

    def _open(self, message: worker_pb2.OpenStream) -> worker_pb2.ControlResponse:
        order = bounds.order(message, self._applied_sequence)
        outcome = self._reservations.open(order)
        self._applied_sequence = message.sequence
        self._changes.notify()  # also of an open that changed nothing else: its number is told
        if isinstance(outcome, Held):
            return _opened(outcome)
        return worker_pb2.ControlResponse(refused=_refused(order.reservation_id, outcome))

    async def _tell(self) -> None:
        pictures = self._changes.pictures(self._picture, wire.CAPACITY_SECONDS)
        async with aclosing(pictures):
            async for _ in pictures:
                async with self._turn:
                    await self._write(self._capacity())

    def _picture(self) -> object:
        return self._reporter.picture(), self._applied_sequence

    def _capacity(self) -> worker_pb2.ControlResponse:
        return worker_pb2.ControlResponse(
            capacity=worker_pb2.Capacity(
                report=self._reporter.make(), applied_sequence=self._applied_sequence
            )
        )


@contextmanager
def _logged(dispatcher_id: str) -> Iterator[None]:
    """Until the stream ends, in whatever way."""
    _log.info("dispatcher %s: its control stream begins", dispatcher_id)
    try:
        yield
    finally:
        _log.info("dispatcher %s: its control stream has ended", dispatcher_id)


def _opened(held: Held) -> worker_pb2.ControlResponse:
    return worker_pb2.ControlResponse(
        opened=worker_pb2.StreamOpened(
            reservation_id=held.order.reservation_id,
            expires_in_ms=held.expires_in_ms(asyncio.get_running_loop().time()),
        )
    )


def _refused(reservation_id: str, outcome: Refused | Declined) -> worker_pb2.StreamRefused:
    if isinstance(outcome, Declined):
        return worker_pb2.StreamRefused(
            reservation_id=reservation_id, reason=outcome.reason, message=outcome.message
        )
    return worker_pb2.StreamRefused(
        reservation_id=reservation_id,
        reason=_REASONS[outcome.kind],
        message=outcome.reason,
        needed_pages=outcome.needed_pages,
        free_pages=outcome.free_pages,
    )
