"""What a message must be before the worker acts on it. Pure; the first bad field is named."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from crowfly.errors import InvalidRequest
from crowfly.v1 import worker_pb2
from crowfly_worker.engine.port import EngineFacts, SamplingParams

MAX_TEMPERATURE = 100.0  # hotter is uniform for any model
MAX_NAME = 128  # characters of an id that other services choose
_RESERVATION = re.compile("[0-9a-f]{32}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Order:
    """The stream that a dispatcher asks for."""

    reservation_id: str
    request_id: str
    prompt_tokens: int
    max_tokens: int


def hello(request: worker_pb2.ControlRequest) -> str:
    """The dispatcher's id. Raises `InvalidRequest`."""
    if not request.HasField("hello"):
        raise InvalidRequest("hello: the first message must be it")
    return _name("hello.dispatcher_id", request.hello.dispatcher_id)


def order(message: worker_pb2.OpenStream, applied_sequence: int) -> Order:
    """Raises `InvalidRequest`."""
    if message.sequence <= applied_sequence:
        raise InvalidRequest(f"open.sequence={message.sequence} is not over {applied_sequence}")
    if message.prompt_tokens < 1:
        raise InvalidRequest("open.prompt_tokens=0 is not at least 1")
    if message.max_tokens < 1:
        raise InvalidRequest("open.max_tokens=0 is not at least 1")
    return Order(
        reservation_id=reservation("open.reservation_id", message.reservation_id),
        request_id=_name("open.request_id", message.request_id),
        prompt_tokens=message.prompt_tokens,
        max_tokens=message.max_tokens,
    )


def reservation(field: str, text: str) -> str:
    """Raises `InvalidRequest`; the value itself is a ticket and is not repeated."""
    if not _RESERVATION.fullmatch(text):
        raise InvalidRequest(f"{field} is not 32 hexadecimal characters")
    return text


def prompt(ids: Sequence[int], placed: Order, facts: EngineFacts) -> list[int]:
    """Raises `InvalidRequest`."""
    if len(ids) != placed.prompt_tokens:
        raise InvalidRequest(
            f"prompt_token_ids has {len(ids)} ids, but {placed.prompt_tokens} were placed"
        )
    for position, token in enumerate(ids):
        if token >= facts.vocab_size:
            raise InvalidRequest(
                f"prompt_token_ids[{position}]={token} is not in 0..{facts.vocab_size - 1}"
            )
    return list(ids)


def sampling(asked: worker_pb2.Sampling, seed: int, facts: EngineFacts) -> SamplingParams:
    """`seed` is the worker's own draw, for a caller who gave none. Raises `InvalidRequest`."""
    if not 0 <= asked.temperature <= MAX_TEMPERATURE:  # also catches NaN
        raise InvalidRequest(
            f"sampling.temperature={asked.temperature:g} is not in 0..{MAX_TEMPERATURE:g}"
        )
    if asked.top_k > facts.vocab_size:
        raise InvalidRequest(f"sampling.top_k={asked.top_k} is not in 0..{facts.vocab_size}")
    top_p = asked.top_p if asked.HasField("top_p") else 1.0
    if not 0 < top_p <= 1:
        raise InvalidRequest(f"sampling.top_p={top_p:g} is not over 0 and at most 1")
    return SamplingParams(
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=top_p,
        seed=asked.seed if asked.HasField("seed") else seed,
    )


def _name(field: str, text: str) -> str:
    if len(text) > MAX_NAME or not (text.isascii() and (text.isprintable())):
        raise InvalidRequest(f"{field} is not at most {MAX_NAME} printable ASCII characters")
    return text
