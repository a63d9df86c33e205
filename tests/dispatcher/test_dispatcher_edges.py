"""Bad input gets a typed error that names the field, and claims nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from crowfly.errors import InvalidRequest
from crowfly.v1.common_pb2 import PRECISION_FP16, WorkerReport
from crowfly.v1.dispatcher_pb2 import WORKER_STATE_READY, PlaceRequest
from crowfly.v1.worker_pb2 import WorkerRegistration
from crowfly_dispatcher.decode import facts_of, load_of, request_of

if TYPE_CHECKING:
    from tests.dispatcher.conftest import Stage

Play = Callable[[Callable[["Stage"], Awaitable[None]]], None]
INVALID = grpc.StatusCode.INVALID_ARGUMENT
CASES: list[tuple[dict[str, Any], grpc.StatusCode, str]] = [
    ({"request_id": "a" * 129}, INVALID, "request_id: at most 128 characters, has 129"),
    ({"request_id": "é"}, INVALID, "request_id: printable ASCII only, is '\\xe9'"),
    ({"request_id": "a\n"}, INVALID, "request_id: printable ASCII only, is 'a\\n'"),
    ({"model": "x" * 257}, INVALID, "model: at most 256 characters, has 257"),
    ({"model": "x\x00"}, INVALID, "model: printable ASCII only, is 'x\\x00'"),
    (
        {"model": "x"},
        grpc.StatusCode.NOT_FOUND,
        "model: 'x' is not served, there is m, n",
    ),
    ({"model": ""}, INVALID, "model: several are served, name one of m, n"),
    ({"prompt_tokens": 0}, INVALID, "prompt_tokens: must be at least 1, is 0"),
    (
        {"max_tokens": 0},
        INVALID,
        "max_tokens: must be at least 1, is 0; leave it out for all that fits",
    ),
    (
        {"prompt_tokens": 1024, "max_tokens": None},
        INVALID,
        (
            "prompt_tokens: can never fit: 1025 tokens are needed and the best worker has 1024, "
            "1 too few (workers: 1 of another model, 1 with too short a context)"
        ),
    ),
    (
        {"prompt_tokens": 2**32 - 1, "max_tokens": 2**32 - 1},
        INVALID,
        (
            "prompt_tokens + max_tokens: can never fit: 8589934590 tokens are needed and the best "
            "worker has 1024, 8589933566 too few "
            "(workers: 1 of another model, 1 with too short a context)"
        ),
    ),
    (
        {"prompt_tokens": 1000, "max_tokens": 24},
        INVALID,
        (
            "prompt_tokens + max_tokens: can never fit: 64 pages of 16 tokens are needed and the best "
            "worker has 60, 4 too few (workers: 1 of another model, 1 with too small a KV arena)"
        ),
    ),
    (
        {"tuning_profile": 9},
        INVALID,
        (
            "tuning_profile: one of TUNING_PROFILE_UNSPECIFIED, TUNING_PROFILE_LATENCY_OPTIMIZED, "
            "TUNING_PROFILE_THROUGHPUT_OPTIMIZED, TUNING_PROFILE_MEMORY_EFFICIENT, is 9"
        ),
    ),
    (
        {"precision": 9},
        INVALID,
        (
            "precision: one of PRECISION_UNSPECIFIED, PRECISION_FP32, PRECISION_BF16, PRECISION_FP16, "
            "is 9"
        ),
    ),
    (
        {"precision": PRECISION_FP16},
        INVALID,
        "precision: 'fp16' is not served, there is fp32",
    ),
    (
        {"kernel_hint": 9},
        INVALID,
        (
            "kernel_hint: one of KERNEL_RUNG_UNSPECIFIED, KERNEL_RUNG_TORCH, KERNEL_RUNG_FUSED, "
            "KERNEL_RUNG_MEGA, is 9"
        ),
    ),
    (
        {"prompt_tokens": 400, "max_tokens": 100},
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        (
            "no worker has the memory now: 32 pages of 16 tokens are needed and the best worker has "
            "30, 2 too few (workers: 1 of another model, 1 full)"
        ),
    ),
]


def test_every_bad_input_has_its_status_and_names_the_field(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher = await stage.dispatcher()
        workers = [await stage.worker("a", pages=60), await stage.worker("b", model="n")]
        for id in "ab":
            await dispatcher.until_state(id, WORKER_STATE_READY)
        workers[0].say(free_pages=30, largest_free_run_pages=30)
        await dispatcher.until(lambda seen: seen.workers[0].report.free_pages == 30)
        for fields, status, message in CASES:
            assert await dispatcher.refused(**fields) == (status, message)
        assert [len(worker.opens) for worker in workers] == [0, 0]
        assert (await dispatcher.place()).worker_id == "a"

    play(scene)


def test_a_long_list_of_models_is_cut(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher = await stage.dispatcher()
        for n in range(23):
            await stage.worker(f"w{n:02}", model=f"m{n:02}")
        await dispatcher.until(lambda seen: len(seen.workers) == 23)
        status, message = await dispatcher.refused(model="x")
        assert status is grpc.StatusCode.NOT_FOUND
        assert message.endswith("m18, m19, and 3 more")

    play(scene)


def test_the_longest_names_pass() -> None:
    request = request_of(PlaceRequest(request_id="~" * 128, model="m" * 256, prompt_tokens=1))
    assert (request.id, request.model) == ("~" * 128, "m" * 256)
    with pytest.raises(InvalidRequest, match="request_id"):
        request_of(PlaceRequest(request_id="~" * 129, model="m", prompt_tokens=1))


def test_a_rate_that_cannot_be_is_unknown() -> None:
    report = WorkerReport(
        prefill_tokens_per_s=0.0, step_base_ms=float("nan"), step_per_sequence_ms=-1.0
    )
    load = load_of(report, 0.0)
    assert (load.prefill_tokens_per_s, load.step_base_ms, load.step_per_sequence_ms) == (
        None,
        None,
        None,
    )
    load = load_of(WorkerReport(prefill_tokens_per_s=5.0, step_base_ms=0.0), 0.0)
    assert (load.prefill_tokens_per_s, load.step_base_ms, load.step_per_sequence_ms) == (
        5.0,
        0.0,
        None,
    )


def test_a_registration_must_say_all() -> None:
    with pytest.raises(ValueError, match="missing or unknown: epoch, address, model, context"):
        facts_of(WorkerRegistration(worker_id="w0"))
