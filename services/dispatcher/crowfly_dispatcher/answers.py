"""What a caller is told when there is no place: which field or which memory, and by how much."""

from collections.abc import Sequence

from crowfly.errors import CrowflyError, InvalidRequest, ModelNotFound, NoCapacity, Unavailable
from crowfly.v1 import worker_pb2
from crowfly_dispatcher.control_stream import ClaimFailed, ClaimRefused
from crowfly_dispatcher.core.model import Reason, Rejection, Request

MOST_NAMES = 20  # of models in one message; gRPC carries 8 KiB of error text

_DROPPED = {
    Reason.MODEL: "of another model",
    Reason.PRECISION: "of another precision",
    Reason.CONTEXT: "with too short a context",
    Reason.ARENA: "with too small a KV arena",
    Reason.NOT_CONNECTED: "not connected",
    Reason.DRAINING: "draining",
    Reason.SILENT: "silent",
    Reason.MEMORY: "full",
    Reason.TRIED: "refused",
}


def no_place(
    rejection: Rejection, request: Request, failures: Sequence[ClaimFailed], map_stale: bool
) -> CrowflyError:
    """`failures`: what the workers said that were tried."""
    if rejection.reason is Reason.NO_WORKER and map_stale:
        return Unavailable("no worker is known: the store does not answer, see CROWFLY_STORE")
    if rejection.reason is Reason.TRIED:
        return failed(failures[-1])
    return _rejected(rejection, request)


def failed(failure: ClaimFailed) -> CrowflyError:
    """When this was the last try."""
    if not isinstance(failure, ClaimRefused):
        return Unavailable(str(failure))
    if failure.reason == worker_pb2.REFUSAL_REASON_INVALID:
        return InvalidRequest(str(failure))
    if failure.reason == worker_pb2.REFUSAL_REASON_DRAINING:
        return Unavailable(str(failure))
    return NoCapacity(str(failure))


def _rejected(rejection: Rejection, request: Request) -> CrowflyError:
    match rejection.reason:
        case Reason.NO_WORKER:
            return Unavailable("no worker is registered: start one that uses the same store")
        case Reason.MODEL_NOT_NAMED:
            return InvalidRequest(f"model: several are served, name one of {_names(rejection)}")
        case Reason.MODEL:
            return ModelNotFound(
                f"model: {request.model!r} is not served, there is {_names(rejection)}"
            )
        case Reason.PRECISION:
            return InvalidRequest(
                f"precision: {request.precision!r} is not served, there is {_names(rejection)}"
            )
        case Reason.CONTEXT | Reason.ARENA:
            return InvalidRequest(_never_fits(rejection, request))
        case Reason.MEMORY:
            return NoCapacity(f"no worker has the memory now: {_short(rejection)}")
    return Unavailable(f"no worker takes requests now ({_dropped(rejection)})")


def _never_fits(rejection: Rejection, request: Request) -> str:
    field = "prompt_tokens" if request.max_tokens is None else "prompt_tokens + max_tokens"
    return f"{field}: can never fit: {_short(rejection)}"


def _short(rejection: Rejection) -> str:
    short = rejection.shortage
    if short is None:
        return _dropped(rejection)
    return (
        f"{short.needed} {short.unit} are needed and the best worker has {short.available}, "
        f"{short.needed - short.available} too few ({_dropped(rejection)})"
    )


def _dropped(rejection: Rejection) -> str:
    return "workers: " + ", ".join(f"{n} {_DROPPED[reason]}" for reason, n in rejection.dropped)


def _names(rejection: Rejection) -> str:
    names = list(rejection.served)
    more = [f"and {len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return ", ".join(names[:MOST_NAMES] + more)
