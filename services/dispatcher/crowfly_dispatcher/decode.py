"""From the wire to the core's values, with every bound checked."""

import math
import secrets
from collections.abc import Collection
from typing import Literal

from crowfly import wire
from crowfly.errors import InvalidRequest
from crowfly.v1 import common_pb2, dispatcher_pb2, worker_pb2
from crowfly_dispatcher.core.model import Profile, Request, WorkerFacts, WorkerLoad

MAX_REQUEST_ID = 128  # characters
MAX_MODEL = 256  # characters; an error repeats it, and gRPC carries 8 KiB of error text

RateField = Literal["prefill_tokens_per_s", "step_base_ms", "step_per_sequence_ms"]

_PRECISION_NAMES = {value: name for name, value in wire.PRECISIONS.items()}
_PROFILES = {value: Profile(name) for name, value in wire.PROFILES.items()}
_PROFILES[common_pb2.TUNING_PROFILE_UNSPECIFIED] = Profile.LATENCY_OPTIMIZED


def facts_of(registration: worker_pb2.WorkerRegistration) -> WorkerFacts:
    """Raises `ValueError` that names what cannot be used."""
    facts = WorkerFacts(
        id=registration.worker_id,
        epoch=registration.epoch,
        address=registration.address,
        model=registration.model.name,
        context_tokens=registration.model.context_tokens,
        precision=_PRECISION_NAMES.get(registration.precision, ""),
        page_tokens=registration.page_tokens,
        total_pages=registration.total_pages,
    )
    missing = [field for field in WorkerFacts.__slots__ if not getattr(facts, field)]
    if missing:
        raise ValueError(f"missing or unknown: {', '.join(missing)}")
    return facts


def load_of(report: common_pb2.WorkerReport, at: float) -> WorkerLoad:
    """`at`: when the report was true, on this process's clock. A rate that cannot be is unknown."""
    prefill = _rate(report, "prefill_tokens_per_s")
    return WorkerLoad(
        sequence=report.sequence,
        at=at,
        free_pages=report.free_pages,
        largest_free_run_pages=report.largest_free_run_pages,
        running=report.running_sequences,
        waiting_prompt_tokens=report.waiting_prompt_tokens,
        held=report.held_claims,
        draining=report.draining,
        prefill_tokens_per_s=prefill or None,
        step_base_ms=_rate(report, "step_base_ms"),
        step_per_sequence_ms=_rate(report, "step_per_sequence_ms"),
    )


def _rate(report: common_pb2.WorkerReport, field: RateField) -> float | None:
    value: float = getattr(report, field)
    known = report.HasField(field) and math.isfinite(value) and value >= 0
    return value if known else None


def request_of(message: dispatcher_pb2.PlaceRequest) -> Request:
    """Raises `InvalidRequest` that names the field and its bounds."""
    _check_text("request_id", message.request_id, MAX_REQUEST_ID)
    _check_text("model", message.model, MAX_MODEL)
    if message.prompt_tokens < 1:
        raise InvalidRequest("prompt_tokens: must be at least 1, is 0")
    if message.HasField("max_tokens") and message.max_tokens < 1:
        raise InvalidRequest("max_tokens: must be at least 1, is 0; leave it out for all that fits")
    _check_enum("tuning_profile", message.tuning_profile, common_pb2.TuningProfile.items())
    _check_enum("precision", message.precision, common_pb2.Precision.items())
    _check_enum("kernel_hint", message.kernel_hint, common_pb2.KernelRung.items())
    return Request(
        id=message.request_id or secrets.token_hex(16),
        model=message.model or None,
        prompt_tokens=message.prompt_tokens,
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        profile=_PROFILES[message.tuning_profile],
        precision=_PRECISION_NAMES.get(message.precision),
    )


def _check_text(field: str, text: str, longest: int) -> None:
    if len(text) > longest:
        raise InvalidRequest(f"{field}: at most {longest} characters, has {len(text)}")
    if not (text.isascii() and text.isprintable()):
        raise InvalidRequest(f"{field}: printable ASCII only, is {text!a}")


def _check_enum(field: str, value: int, known: Collection[tuple[str, int]]) -> None:
    if value not in (number for _, number in known):
        names = ", ".join(name for name, _ in known)
        raise InvalidRequest(f"{field}: one of {names}, is {value}")
