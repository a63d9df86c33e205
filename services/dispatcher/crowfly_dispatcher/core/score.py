"""How long would it take there? Predicted milliseconds, and the least of them.

queue   = (prompts waiting there + promised since) / prefill rate
prefill = prompt / prefill rate, but at least one step: it shares one with the running sequences
decode  = max_tokens * step, step = step base + sequences with this one * step per sequence
"""

import math
from collections.abc import Callable, Sequence
from hashlib import blake2b

from crowfly_dispatcher.core.filters import Eligible
from crowfly_dispatcher.core.model import Candidate, Profile, Request, WorkerLoad

# Rates while no candidate has measured its own: a small model on a slow CPU. They scale all
# candidates alike, so they choose nothing; they keep the prediction from looking good.
ASSUMED_PREFILL_TOKENS_PER_S = 100.0
ASSUMED_STEP_BASE_MS = 100.0
ASSUMED_STEP_PER_SEQUENCE_MS = 10.0

# Within 1 % two predictions are equal: the rates are running means of measurements that scatter
# by several percent, so less is noise, and following noise sends all dispatchers to one worker.
NEAR = 1.01

Rates = tuple[float, float, float]  # prefill tokens/s, step base ms, step per sequence ms


def score(eligible: Sequence[Eligible], request: Request) -> list[Candidate]:
    """A candidate for each, in the same order. An unknown rate is the slowest known one."""
    slowest = _slowest([each.load for each in eligible])
    return [_candidate(each, request, _rates(each.load, slowest)) for each in eligible]


def pick(candidates: Sequence[Candidate], request: Request) -> Candidate:
    """The least by the request's profile. Among near-equals the one with the fewest promises of
    this dispatcher, which spreads a burst evenly; then by a hash of request and worker, so that
    several dispatchers with the same map do not all choose the same worker."""
    for cost, near in _COSTS[request.profile]:
        costs = [cost(candidate) for candidate in candidates]
        bound = min(costs) * near
        candidates = [each for each, its in zip(candidates, costs, strict=True) if its <= bound]
    fewest = min(each.promised_sequences for each in candidates)
    candidates = [each for each in candidates if each.promised_sequences == fewest]
    return min(candidates, key=lambda each: _lot(request, each))


def _candidate(eligible: Eligible, request: Request, rates: Rates) -> Candidate:
    worker, load = eligible.worker, eligible.load
    prefill_tokens_per_s, base_ms, per_sequence_ms = rates
    waiting = load.waiting_prompt_tokens + worker.promised_prompt_tokens
    sequences = load.running + load.held + worker.promised_sequences + 1
    step_ms = base_ms + sequences * per_sequence_ms
    hole = load.largest_free_run_pages - worker.promised_pages  # if all were taken from that run
    return Candidate(
        facts=worker.facts,
        max_tokens=eligible.max_tokens,
        pages=eligible.pages,
        hole_pages=hole if hole >= eligible.pages else None,
        promised_sequences=worker.promised_sequences,
        queue_ms=1000 * waiting / prefill_tokens_per_s,
        prefill_ms=max(step_ms, 1000 * request.prompt_tokens / prefill_tokens_per_s),
        decode_ms=eligible.max_tokens * step_ms,
    )


def _rates(load: WorkerLoad, unknown: Rates) -> Rates:
    prefill, base, per_sequence = unknown
    return (
        prefill if load.prefill_tokens_per_s is None else load.prefill_tokens_per_s,
        base if load.step_base_ms is None else load.step_base_ms,
        per_sequence if load.step_per_sequence_ms is None else load.step_per_sequence_ms,
    )


def _slowest(loads: Sequence[WorkerLoad]) -> Rates:
    prefill = [x for load in loads if (x := load.prefill_tokens_per_s) is not None]
    base = [x for load in loads if (x := load.step_base_ms) is not None]
    per_sequence = [x for load in loads if (x := load.step_per_sequence_ms) is not None]
    return (
        min(prefill, default=ASSUMED_PREFILL_TOKENS_PER_S),
        max(base, default=ASSUMED_STEP_BASE_MS),
        max(per_sequence, default=ASSUMED_STEP_PER_SEQUENCE_MS),
    )


def _ttft(candidate: Candidate) -> float:
    return candidate.ttft_ms


def _total(candidate: Candidate) -> float:
    return candidate.total_ms


def _looseness(candidate: Candidate) -> float:
    """Pages of the hole; scattered pages are looser than any hole."""
    return math.inf if candidate.hole_pages is None else candidate.hole_pages


# What each profile minimises, first things first, and up to which factor two are equal.
_COSTS: dict[Profile, tuple[tuple[Callable[[Candidate], float], float], ...]] = {
    Profile.LATENCY_OPTIMIZED: ((_ttft, NEAR), (_total, NEAR)),
    Profile.THROUGHPUT_OPTIMIZED: ((_total, NEAR),),
    Profile.MEMORY_EFFICIENT: ((_looseness, 1.0), (_total, NEAR)),
}


def _lot(request: Request, candidate: Candidate) -> bytes:
    return blake2b(f"{request.id}\0{candidate.facts.id}".encode(), digest_size=8).digest()
