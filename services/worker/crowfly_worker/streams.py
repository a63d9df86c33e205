"""Token streams: a ticket comes in, what the engine makes goes out, and a cut stops the work."""

import asyncio
import logging
import secrets
import time

import grpc

from crowfly.ended_call import ended_call_is_cancelled
from crowfly.errors import CrowflyError, DeadlineExceeded
from crowfly.tokenizer import Tokenizer
from crowfly.v1 import worker_pb2
from crowfly_worker import bounds
from crowfly_worker.answer import Answer
from crowfly_worker.bounds import Order
from crowfly_worker.changes import Changes
from crowfly_worker.engine.port import Engine
from crowfly_worker.reservations import Reservations
from crowfly_worker.router import Router, Stream

Context = grpc.aio.ServicerContext[worker_pb2.GenerateRequest, worker_pb2.GenerateResponse]

# A caller's own clock ends its call a little before ours does.
_DEADLINE_SLACK_SECONDS = 0.1

# A caller that reads nothing for so long holds pages that others wait for. A slow one is safe: each
# write counts anew, and waits only once the connection buffers no more (gRPC's default is 64 KiB and
# grows: thousands of tokens).
WRITE_SECONDS = 30.0

_log = logging.getLogger(__name__)


class Streams:
    """Serves `Generate`."""

    def __init__(
        self,
        worker_id: str,
        engine: Engine,
        tokenizer: Tokenizer,
        reservations: Reservations,
        router: Router,
        changes: Changes,
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        self._worker_id = worker_id
        self._engine = engine
        self._tokenizer = tokenizer
        self._reservations = reservations
        self._router = router
        self._changes = changes
        self._write_seconds = write_seconds

    async def generate(self, request: worker_pb2.GenerateRequest, context: Context) -> None:
        """Raises `InvalidTicket`, `InvalidRequest`, `InternalError` if the engine failed,
        `Unavailable` if the worker stops first, and `DeadlineExceeded` if the caller does not read.
        However it ends, the claim is given back."""
        admitted_at = time.monotonic()
        order = self._reservations.take(request.ticket)
        stream = self._submit(order, request)
        answer = Answer(order, self._tokenizer.detokenizer(), admitted_at)
        try:
            await self._relay(stream, answer, context)
        except asyncio.CancelledError:
            _log_cut(answer, _cause(context))
            raise
        except CrowflyError as error:
            _log_cut(answer, str(error))
            raise
        finally:
            if not stream.ended:
                self._engine.cancel(order.reservation_id)
            self._router.leave(order.reservation_id)

    def _submit(self, order: Order, request: worker_pb2.GenerateRequest) -> Stream:
        try:
            prompt = bounds.prompt(request.prompt_token_ids, order, self._engine.facts)
            seed = secrets.randbits(64)
            sampling = bounds.sampling(request.sampling, seed, self._engine.facts)
            self._engine.submit(order.reservation_id, prompt, sampling)
        except Exception:
            self._engine.release(order.reservation_id)
            self._changes.notify()
            raise
        return self._router.open(order.reservation_id)

    async def _relay(self, stream: Stream, answer: Answer, context: Context) -> None:
        while True:
            arrival = await stream.next()
            response = answer.add(arrival)
            if arrival.event.finish:
                finish = answer.finish(arrival, self._engine, self._worker_id)
                response.finish.CopyFrom(finish)
                await self._write(response, context)
                return
            if response.token_ids:
                await self._write(response, context)

    async def _write(self, response: worker_pb2.GenerateResponse, context: Context) -> None:
        try:
            async with asyncio.timeout(self._write_seconds):
                with ended_call_is_cancelled():
                    await context.write(response)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the caller did not read for {self._write_seconds:g} s"
            ) from None


def _log_cut(answer: Answer, cause: str) -> None:
    _log.info("cut %s after %d tokens: %s", answer.order.request_id, answer.tokens, cause)


def _cause(context: Context) -> str:
    remaining: float | None = context.time_remaining()  # typed as if every call had a deadline
    if remaining is not None and remaining < _DEADLINE_SLACK_SECONDS:
        return "its deadline passed"
    return "the caller left"
