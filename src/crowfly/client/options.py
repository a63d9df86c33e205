"""What a caller may ask for, and the edge where bad values stop."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as ProtoMessage

from crowfly.errors import InvalidRequest

Profile = Literal["latency_optimized", "throughput_optimized", "memory_efficient"]
Precision = Literal["fp32", "bf16", "fp16"]
Kernel = Literal["torch", "fused", "mega"]


T = TypeVar("T")
_KINDS = {
    FieldDescriptor.TYPE_UINT32: f"an integer of 0..{2**32 - 1}",
    FieldDescriptor.TYPE_UINT64: f"an integer of 0..{2**64 - 1}",
    FieldDescriptor.TYPE_DOUBLE: "a number",
    FieldDescriptor.TYPE_STRING: "a text",
}


class Message(TypedDict):
    """One turn of a chat."""

    role: str
    content: str


class Options(TypedDict, total=False):
    """Every option has a default that works."""

    model: str  # default: the only one that is served
    max_tokens: int  # default: the rest of the context
    temperature: float  # default 0: greedy
    top_k: int  # default 0: all
    top_p: float  # default 1: all
    seed: int  # default: drawn by the worker
    precision: Precision  # default: whatever the best worker runs
    kernel_hint: Kernel  # default: whatever the worker runs; see usage.kernel
    request_id: str  # default: drawn by the dispatcher
    timeout: float  # seconds for everything; default: none


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
