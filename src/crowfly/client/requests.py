"""From what a caller asks for to the messages of the wire: the edge where bad values stop."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as ProtoMessage

from crowfly import wire
from crowfly.client.options import Options
from crowfly.errors import InvalidRequest
from crowfly.v1 import dispatcher_pb2, worker_pb2

T = TypeVar("T")
_KINDS = {
    FieldDescriptor.TYPE_UINT32: f"an integer of 0..{2**32 - 1}",
    FieldDescriptor.TYPE_UINT64: f"an integer of 0..{2**64 - 1}",
    FieldDescriptor.TYPE_DOUBLE: "a number",
    FieldDescriptor.TYPE_STRING: "a text",
}


def place_request(
    model: str, prompt_tokens: int, profile: str, options: Options
) -> dispatcher_pb2.PlaceRequest:
    """Raises `InvalidRequest`."""
    if not prompt_tokens:
        raise InvalidRequest("prompt is empty: it needs at least one token")
    request = dispatcher_pb2.PlaceRequest(model=model, prompt_tokens=prompt_tokens)
    assign(
        request,
        tuning_profile=choice("tuning_profile", profile, wire.PROFILES),
        max_tokens=options.get("max_tokens"),
        request_id=options.get("request_id"),
        precision=choice("precision", options.get("precision"), wire.PRECISIONS),
        kernel_hint=choice("kernel_hint", options.get("kernel_hint"), wire.KERNELS),
    )
    return request


def sampling(options: Options) -> worker_pb2.Sampling:
    """Raises `InvalidRequest` for a wrong type; the worker knows the bounds."""
    message = worker_pb2.Sampling()
    assign(
        message,
        temperature=options.get("temperature"),
        top_k=options.get("top_k"),
        top_p=options.get("top_p"),
        seed=options.get("seed"),
    )
    return message


def token_ids(prompt: Sequence[int], vocab_size: int) -> list[int]:
    """`prompt` itself. Raises `InvalidRequest` naming the first id that is none of the model's."""
    for position, token in enumerate(prompt):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"prompt[{position}]={token!r} is not a token id of 0..{vocab_size - 1}"
            )
    return list(prompt)


def choice(field: str, value: str | None, names: Mapping[str, T]) -> T | None:
    """What stands for `value`; None for None. Raises `InvalidRequest` listing the names."""
    if value is None:
        return None
    if value not in names:
        raise InvalidRequest(f"{field}={value!r} is none of {', '.join(names)}")
    return names[value]


def assign(message: ProtoMessage, **fields: object) -> None:
    """Set those fields that are not None. Raises `InvalidRequest` naming a field of the wrong
    type or out of its range, and the range."""
    for name, value in fields.items():
        if value is None:
            continue
        try:
            setattr(message, name, value)
        except (TypeError, ValueError):
            kind = _KINDS[message.DESCRIPTOR.fields_by_name[name].type]
            raise InvalidRequest(f"{name}={value!r} is not {kind}") from None
