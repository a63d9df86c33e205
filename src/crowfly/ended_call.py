"""A call that ends while something is being sent on it: nobody's fault, and no traceback.

The end of a call fails what is being sent with `grpc.aio.InternalError`, a moment before grpc cancels
the servicer. Left alone, grpc logs that as a fault of the servicer.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

_GRPC_LOGGER = "grpc._cython.cygrpc"


@contextmanager
def ended_call_is_cancelled() -> Iterator[None]:
    """Around a write or an abort. Raises `CancelledError` if the call has ended."""
    try:
        yield
    except grpc.aio.InternalError as error:
        raise asyncio.CancelledError("the call has ended") from error


def shorten_ended_calls() -> None:
    """In this process's log: for the status that follows a servicer's return, which only grpc itself
    can send."""
    logging.getLogger(_GRPC_LOGGER).addFilter(_shorten)


def _shorten(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], grpc.aio.InternalError):
        record.levelno, record.levelname = logging.INFO, "INFO"
        record.msg, record.args = "a caller left while its call's status was on its way", None
        record.exc_info = None
    return True
