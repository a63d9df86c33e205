"""The engine as the rest of the worker sees it: claim, submit, cancel, step events, facts.

    claim(id, prompt, max) ──> Claimed | Refused      any thread, microseconds
    submit(id, prompt, sampling)                      any thread; needs the claim
    cancel(id)                                        any thread; stops within one step
    release(id)                                       any thread; a claim that was never submitted
    step() ──> events                                 the device's thread alone

A claim that was submitted is released by the engine itself, when its last event is returned.
Another engine could stand behind this port.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What never changes while the engine lives."""

    device_uuid: str | None  # as NVML spells it; None: the node's CPU
    context_tokens: int
    vocab_size: int
    precision: str  # "fp32", "bf16" or "fp16"
    kernel: str  # the rung that runs: "torch"
    page_tokens: int
    total_pages: int
    page_bytes: int  # over all layers, keys and values


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The engine's state at one moment."""

    free_pages: int
    largest_free_run_pages: int
    claimed: int  # claims that were not submitted yet
    running: int  # sequences submitted and not ended
    waiting_prompt_tokens: int  # claimed or submitted, not prefilled yet
    prefill_tokens_per_s: float | None  # None: not measured yet
    step_base_ms: float | None  # a decode step takes base + sequences * per_sequence
    step_per_sequence_ms: float | None
    prefilled_tokens_total: int
    generated_tokens_total: int
    cancelled_total: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The pages are set aside until the sequence ends or the claim is released."""

    pages: int


class RefusalKind(Enum):
    NO_PAGES = "no_pages"  # not now
    INVALID = "invalid"  # never: over the context or the arena


@dataclass(frozen=True, slots=True)
class Refused:
    kind: RefusalKind
    reason: str
    needed_pages: int
    free_pages: int


@dataclass(frozen=True, slots=True)
class SamplingParams:
    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 is all
    top_p: float = 1.0
    seed: int = 0


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What one step did for one sequence, if only to move its prompt on. The event with a `finish`
    is its last.

    The model's end token is not among `tokens`: STOP stands for it. Computing it was work all the
    same, so `generated_tokens_total` counts it.
    """

    id: str
    tokens: tuple[int, ...]
    finish: FinishReason | None = None
    error: str | None = None  # with FAILED: why
    first_kernel_at: float | None = None  # time.monotonic(), in the event of its first step


class Engine(Protocol):
    facts: EngineFacts

    def claim(self, id: str, prompt_tokens: int, max_tokens: int) -> Claimed | Refused:
        """Reserve pages for all of `prompt_tokens + max_tokens` but the last token, which is never
        fed back. Idempotent by id, also while the sequence runs; another claim under a held id
        is refused as INVALID.
        """

    def release(self, id: str) -> None:
        """Give back a claim that was not submitted. An unknown id is no error."""

    def submit(self, id: str, prompt: Sequence[int], sampling: SamplingParams) -> None:
        """Start a claimed sequence; the answer ends at the model's end token or at the claim's
        max_tokens. The caller has checked that all ids are in the vocabulary.

        Raises `KeyError` if the id holds no claim, `ValueError` if the prompt has not as many ids as
        were claimed.
        """

    def cancel(self, id: str) -> None:
        """End a submitted sequence; its last event says CANCELLED. An unknown id is no error."""

    def load(self) -> EngineLoad: ...

    def step(self) -> list[StepEvent]:
        """One pass over the device, or [] at once when there is nothing to do."""

    def wait(self, seconds: float) -> None:
        """Block until there is something to step, at most `seconds`."""
