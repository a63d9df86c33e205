"""One life of the control stream to a worker: claims go down, capacity comes up."""

import asyncio
import time

import grpc

from crowfly.cancellation import asked_to_stop
from crowfly.v1 import worker_pb2
from crowfly_dispatcher.cluster import Cluster
from crowfly_dispatcher.core.model import Promise, WorkerFacts

# A worker answers a claim in microseconds, off its device's thread. After this long the request
# is better off elsewhere. The stream stays: whether the worker lives, its silence tells.
ANSWER_SECONDS = 1.0
# Capacity comes at least once a second. After five missed ones the process does not run, even if
# its kernel or its gRPC threads still answer pings.
SILENCE_SECONDS = 5.0

Call = grpc.aio.StreamStreamCall[worker_pb2.ControlRequest, worker_pb2.ControlResponse]


class ClaimFailed(Exception):
    """This worker did not take the claim; another one may."""


class ClaimRefused(ClaimFailed):
    def __init__(self, worker_id: str, refused: worker_pb2.StreamRefused) -> None:
        super().__init__(f"worker {worker_id} refused: {refused.message}")
        self.reason = refused.reason


class ClaimUnanswered(ClaimFailed):
    """Not in time, and it was given back; the worker may live."""


class StreamLost(ClaimFailed):
    """The worker is suspect. Whether it took the claim is unknown; it will expire there."""


class ControlStream:
    """`run` it once; `open` and `close` work while it runs."""

    def __init__(self, facts: WorkerFacts, dispatcher_id: str, cluster: Cluster) -> None:
        self.connected = False  # the worker has spoken, and the stream has not ended
        self.was_connected = False
        self._facts = facts
        self._cluster = cluster
        self._sent = 0  # claims
        self._outbox: asyncio.Queue[worker_pb2.ControlRequest] = asyncio.Queue()
        self._waiting: dict[str, asyncio.Future[worker_pb2.StreamOpened]] = {}
        self._call: Call | None = None
        self._given_up = ""  # why this side ended the stream
        hello = worker_pb2.Hello(dispatcher_id=dispatcher_id)
        self._outbox.put_nowait(worker_pb2.ControlRequest(hello=hello))

    async def run(self, call: Call) -> str:
        """Until the call ends, for whatever reason; returns the reason."""
        reason = "it left the cluster"
        self._call = call
        try:
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self._write(call))
                reason = await self._read(call)
                writing.cancel()
        finally:
            call.cancel()
            self._end(reason)
        if asked_to_stop():  # grpc.aio loses a cancellation that meets a call's own end
            raise asyncio.CancelledError
        return reason

    async def open(self, claim: worker_pb2.OpenStream, pages: int) -> worker_pb2.StreamOpened:
        """Promise the pages in the book, and ask the worker for them.

        Up to the first await this runs with the decision before it, so nothing comes in between.
        A claim that is not answered in time is given back, as is that of a caller who gives up;
        its promise stays until the worker reports what it did. Raises `ClaimFailed`.
        """
        if not self.connected:
            raise StreamLost(f"worker {self._facts.id} is not connected")
        answer = self._send_open(claim, pages)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            self.close(claim.reservation_id)
            raise ClaimUnanswered(
                f"worker {self._facts.id} did not answer a claim within {ANSWER_SECONDS:g} s"
            ) from None
        except asyncio.CancelledError:
            self.close(claim.reservation_id)
            raise
        finally:
            self._waiting.pop(claim.reservation_id, None)

    def close(self, reservation: str) -> None:
        """Give a claim back."""
        close = worker_pb2.CloseStream(reservation_id=reservation)
        self._outbox.put_nowait(worker_pb2.ControlRequest(close=close))

    def _send_open(
        self, claim: worker_pb2.OpenStream, pages: int
    ) -> asyncio.Future[worker_pb2.StreamOpened]:
        self._sent += 1
        claim.sequence = self._sent
        promise = Promise(claim.reservation_id, self._sent, pages, claim.prompt_tokens)
        self._cluster.book.promise(self._facts.id, promise)
        answer = asyncio.get_running_loop().create_future()
        self._waiting[claim.reservation_id] = answer
        self._outbox.put_nowait(worker_pb2.ControlRequest(open=claim))
        return answer

    async def _write(self, call: Call) -> None:
        try:
            while True:
                await call.write(await self._outbox.get())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call has ended, and the reader learns why

    async def _read(self, call: Call) -> str:
        try:
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    response = await call.read()
                if not isinstance(response, worker_pb2.ControlResponse):
                    return "it ended the stream"
                self._heard(response)
        except TimeoutError:
            return f"silent for {SILENCE_SECONDS:g} s"
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        except asyncio.CancelledError:
            # A call that this side cancelled raises it too, without a request to this task.
            if self._given_up and not asked_to_stop():
                return self._given_up
            raise

    def _heard(self, response: worker_pb2.ControlResponse) -> None:
        match response.WhichOneof("message"):
            case "capacity":
                self._heard_capacity(response.capacity)
            case "opened":
                answer = self._waiting.get(response.opened.reservation_id)
                if answer and not answer.done():
                    answer.set_result(response.opened)
            case "refused":
                self._heard_refusal(response.refused)

    def _heard_capacity(self, capacity: worker_pb2.Capacity) -> None:
        report, facts = capacity.report, self._facts
        if (report.worker_id, report.epoch) != (facts.id, facts.epoch):
            self._give_up(f"another worker, {report.worker_id!r}, answers at its address")
            return
        if not self.connected:
            self.connected = self.was_connected = True
            self._cluster.book.connected(facts.id, facts.epoch)
        self._cluster.heard(report, time.monotonic(), capacity.applied_sequence)

    def _heard_refusal(self, refused: worker_pb2.StreamRefused) -> None:
        self._released(refused)
        answer = self._waiting.get(refused.reservation_id)
        if answer and not answer.done():
            answer.set_exception(ClaimRefused(self._facts.id, refused))

    def _released(self, refused: worker_pb2.StreamRefused) -> None:
        book, id, reservation = self._cluster.book, self._facts.id, refused.reservation_id
        if refused.reason == worker_pb2.REFUSAL_REASON_NO_PAGES:
            book.release_short(id, reservation, refused.free_pages)
        else:
            book.release(id, reservation)

    def _give_up(self, reason: str) -> None:
        if self._call is not None and not self._given_up:
            self._given_up = reason
            self._call.cancel()
            self._end(reason)

    def _end(self, reason: str) -> None:
        """The worker is suspect from now, and nobody waits for it any more."""
        if self.connected:
            self.connected = False
            self._cluster.book.lost(self._facts.id, self._facts.epoch)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(StreamLost(f"worker {self._facts.id} is lost: {reason}"))
