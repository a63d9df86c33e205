"""Everything Crowfly raises at a caller, and how each error travels.

    CrowflyError
    ├── InvalidRequest      INVALID_ARGUMENT    400  a field is out of its bounds
    ├── ModelNotFound       NOT_FOUND           404  nobody serves that model
    ├── InvalidTicket       FAILED_PRECONDITION 409  unknown, used or expired
    ├── NoCapacity          RESOURCE_EXHAUSTED  429  no worker has the memory now
    ├── Unavailable         UNAVAILABLE         503  nobody answers; try again
    ├── DeadlineExceeded    DEADLINE_EXCEEDED   504
    └── InternalError       INTERNAL            500  a fault of ours

An error is its gRPC status on the wire, so any gRPC client reads the same thing; `from_grpc`
turns a status back into the error.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import grpc

from crowfly.ended_call import ended_call_is_cancelled


class CrowflyError(Exception):
    """Base of all. `str(error)` says what was wrong and what to do."""

    grpc_status: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    http_status: ClassVar[int] = 500


class InvalidRequest(CrowflyError):
    """A field is missing or out of its bounds; the message names both."""

    grpc_status = grpc.StatusCode.INVALID_ARGUMENT
    http_status = 400


class ModelNotFound(CrowflyError):
    """Nobody serves that model; the message lists those that are served."""

    grpc_status = grpc.StatusCode.NOT_FOUND
    http_status = 404


class InvalidTicket(CrowflyError):
    """The ticket is unknown, was used, or has expired: ask for a new place."""

    grpc_status = grpc.StatusCode.FAILED_PRECONDITION
    http_status = 409


class NoCapacity(CrowflyError):
    """No worker has the memory for this request now; nothing was reserved."""

    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    http_status = 429


class Unavailable(CrowflyError):
    """The service does not answer, or the worker died under the stream."""

    grpc_status = grpc.StatusCode.UNAVAILABLE
    http_status = 503


class DeadlineExceeded(CrowflyError):
    """The deadline of this call passed first: the caller's own, or a bound of ours."""

    grpc_status = grpc.StatusCode.DEADLINE_EXCEEDED
    http_status = 504


class InternalError(CrowflyError):
    """A fault of ours; the service's log has the details."""

    grpc_status = grpc.StatusCode.INTERNAL
    http_status = 500


_BY_STATUS = {
    error.grpc_status: error
    for error in (
        InvalidRequest,
        ModelNotFound,
        InvalidTicket,
        NoCapacity,
        Unavailable,
        DeadlineExceeded,
        InternalError,
    )
}


def from_grpc(error: grpc.aio.AioRpcError) -> CrowflyError:
    """The typed error behind a failed call; an unforeseen status becomes `InternalError`."""
    kind = _BY_STATUS.get(error.code())
    if kind is None:
        return InternalError(f"{error.code().name}: {error.details()}")
    return kind(error.details() or error.code().name)


@asynccontextmanager
async def errors_as_status(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Around a servicer's work: a `CrowflyError` ends the call with its own status and text. Raises
    `CancelledError` if the call has ended before."""
    try:
        yield
    except CrowflyError as error:
        with ended_call_is_cancelled():
            await context.abort(error.grpc_status, str(error))
