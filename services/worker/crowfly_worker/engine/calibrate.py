"""The first rates, measured at start on the real network; the arena is left as it was."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from crowfly_worker.engine.arena import PageArena
from crowfly_worker.engine.port import SamplingParams
from crowfly_worker.engine.rates import Rates
from crowfly_worker.engine.runner import Runner
from crowfly_worker.engine.scheduler import Work
from crowfly_worker.engine.sequence import Sequence

# Few enough that a worker with a small model starts in seconds; live corrections do the rest.
_PREFILL_TOKENS = 128
_PREFILL_RUNS = 3
_DECODE_BATCH = 8
_DECODE_STEPS = 5

LEAST_PAGES = _DECODE_BATCH  # that an arena must have


def calibrate(runner: Runner, arena: PageArena, page_tokens: int) -> Rates:
    """Times prompts, and decode steps at two batch sizes. The arena has 8 free pages or more."""
    prompt_pages = min(_PREFILL_TOKENS // page_tokens, arena.free_pages)
    with _sequences(arena, 1, prompt_pages, prompt_pages * page_tokens) as prompts:
        _run_ms(runner, prompts)  # warms up: the first pass allocates and picks its kernels
        prefill_ms = statistics.median(_run_ms(runner, prompts) for _ in range(_PREFILL_RUNS))
    one_ms = _decode_ms(runner, arena, 1)
    many_ms = _decode_ms(runner, arena, _DECODE_BATCH)
    per_sequence_ms = max(0.0, (many_ms - one_ms) / (_DECODE_BATCH - 1))
    return Rates(
        prefill_tokens_per_s=prompt_pages * page_tokens / prefill_ms * 1000,
        step_base_ms=max(one_ms - per_sequence_ms, one_ms / 2),
        step_per_sequence_ms=per_sequence_ms,
    )


def _decode_ms(runner: Runner, arena: PageArena, batch: int) -> float:
    """One row each, again and again at position 0: the cost is that of reading the weights."""
    with _sequences(arena, batch, pages=1, prompt_tokens=1) as sequences:
        _run_ms(runner, sequences)
        return statistics.median(_run_ms(runner, sequences) for _ in range(_DECODE_STEPS))


def _run_ms(runner: Runner, sequences: list[Sequence]) -> float:
    started = time.perf_counter()
    runner.run(runner.pack([Work(one, one.pending) for one in sequences])).cpu()
    return (time.perf_counter() - started) * 1000


@contextmanager
def _sequences(
    arena: PageArena, count: int, pages: int, prompt_tokens: int
) -> Iterator[list[Sequence]]:
    """Sequences that hold pages while the block runs."""
    owners = [f"calibration-{i}" for i in range(count)]
    claims = [arena.claim(owner, pages) for owner in owners]
    try:
        yield [
            Sequence(owner, (0,) * prompt_tokens, 1, claimed, SamplingParams())
            for owner, claimed in zip(owners, claims, strict=True)
            if claimed is not None
        ]
    finally:
        for owner, claimed in zip(owners, claims, strict=True):
            if claimed is not None:
                arena.release(owner)
