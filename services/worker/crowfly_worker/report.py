"""The engine's facts and load in the words of the wire. Pure."""

from dataclasses import dataclass

from crowfly import wire
from crowfly.v1 import common_pb2, worker_pb2
from crowfly_worker.engine.port import EngineFacts, EngineLoad


@dataclass(frozen=True, slots=True)
class Identity:
    """One worker process."""

    worker_id: str
    epoch: str  # random, one per process start
    node: str
    model: str  # the name it is served under
    device_uuid: str


def decisive(load: EngineLoad) -> tuple[int, ...]:
    """What a dispatcher places by: a report is due when this has changed. Rates and counters move
    at every step and go along."""
    return (
        load.free_pages,
        load.largest_free_run_pages,
        load.claimed,
        load.running,
        load.waiting_prompt_tokens,
    )


def worker_report(
    identity: Identity, load: EngineLoad, sequence: int, draining: bool
) -> common_pb2.WorkerReport:
    return common_pb2.WorkerReport(
        worker_id=identity.worker_id,
        epoch=identity.epoch,
        sequence=sequence,
        device_uuid=identity.device_uuid,
        draining=draining,
        free_pages=load.free_pages,
        largest_free_run_pages=load.largest_free_run_pages,
        running_sequences=load.running,
        waiting_prompt_tokens=load.waiting_prompt_tokens,
        held_claims=load.claimed,
        prefill_tokens_per_s=load.prefill_tokens_per_s,
        step_base_ms=load.step_base_ms,
        step_per_sequence_ms=load.step_per_sequence_ms,
        prefilled_tokens_total=load.prefilled_tokens_total,
        generated_tokens_total=load.generated_tokens_total,
        cancelled_total=load.cancelled_total,
    )


def registration(
    identity: Identity, facts: EngineFacts, address: str, tokenizer_sha256: str
) -> worker_pb2.WorkerRegistration:
    return worker_pb2.WorkerRegistration(
        worker_id=identity.worker_id,
        epoch=identity.epoch,
        node=identity.node,
        address=address,
        device_uuid=identity.device_uuid,
        model=common_pb2.Model(
            name=identity.model,
            context_tokens=facts.context_tokens,
            vocab_size=facts.vocab_size,
            tokenizer_sha256=tokenizer_sha256,
        ),
        precision=wire.PRECISIONS[facts.precision],
        kernel=wire.KERNELS[facts.kernel],
        page_tokens=facts.page_tokens,
        total_pages=facts.total_pages,
        page_bytes=facts.page_bytes,
    )


def fragmentation_score(load: EngineLoad) -> float:
    """1 - largest free run / all free pages; 0 when none is free."""
    return 1 - load.largest_free_run_pages / load.free_pages if load.free_pages else 0.0
