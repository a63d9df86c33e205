"""One answer on its way from the worker to the caller."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import grpc

from crowfly.cancellation import asked_to_stop
from crowfly.errors import CrowflyError, Unavailable, from_grpc
from crowfly.v1 import dispatcher_pb2, worker_pb2

FinishName = Literal["stop", "length"]
_FINISH: dict[int, FinishName] = {
    worker_pb2.FINISH_REASON_STOP: "stop",
    worker_pb2.FINISH_REASON_LENGTH: "length",
}
GenerateCall = grpc.aio.UnaryStreamCall[worker_pb2.GenerateRequest, worker_pb2.GenerateResponse]


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step of the engine added. `text` holds whole characters only, so it may be empty
    while `token_ids` is not."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishName
    usage: worker_pb2.Usage


class Stream:
    """Iterate for `Delta`s; afterwards `usage` and `finish_reason` are set.

    Leaving early, by `aclose`, by the end of `async with` or by dropping the object, stops the
    work on the worker within one step. Iterating raises `Unavailable` if the worker dies,
    `DeadlineExceeded` after the caller's timeout, and any other `CrowflyError` the worker answers.
    """

    def __init__(
        self, call: GenerateCall, placement: dispatcher_pb2.PlaceResponse, placed_ms: float
    ) -> None:
        self.placement = placement
        self.placed_ms = placed_ms  # from asking the dispatcher until its answer
        self.usage: worker_pb2.Usage | None = None
        self.finish_reason: FinishName | None = None
        self._call = call
        self._responses = self._read()
        self._received = 0
        self._closed = False

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        return await anext(self._responses)

    async def _read(self) -> AsyncIterator[Delta]:
        try:
            async for response in self._call:
                self._received += len(response.token_ids)
                if response.HasField("finish"):
                    self.usage = response.finish.usage
                    self.finish_reason = _FINISH[response.finish.reason]
                yield Delta(response.text, tuple(response.token_ids))
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error
        except asyncio.CancelledError:
            if self._closed and not asked_to_stop():
                return  # `aclose` was called beside this reader
            raise
        if self.usage is None:
            raise Unavailable(f"{self._where()} ended the stream without its usage")

    def _failure(self, error: grpc.aio.AioRpcError) -> CrowflyError:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            return from_grpc(error)
        return Unavailable(f"{self._where()} is gone: {error.details()}")

    def _where(self) -> str:
        worker = f"worker {self.placement.worker_id} at {self.placement.worker_address}"
        return f"after {self._received} tokens, {worker}"

    async def collect(self) -> Completion:
        """The whole answer, once it is there."""
        text: list[str] = []
        tokens: list[int] = []
        async for delta in self:
            text.append(delta.text)
            tokens.extend(delta.token_ids)
        assert self.usage is not None
        assert self.finish_reason is not None
        return Completion("".join(text), tuple(tokens), self.finish_reason, self.usage)

    async def aclose(self) -> None:
        """Stop the work, if it is not done; who reads beside this sees the stream end."""
        self._closed = True
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
