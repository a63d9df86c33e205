"""What a person who starts a worker reads: how far it is, and what it chose by itself."""

import logging
from collections.abc import Callable

from crowfly_worker.engine.port import EngineFacts, EngineLoad

_log = logging.getLogger(__name__)


def log_progress(model: str) -> Callable[[int, int], None]:
    """For `load_engine`: one line per tenth of the tensors."""
    told = 0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if done * 10 // total > told:
            told = done * 10 // total
            _log.info("loading %s: %d %%", model, told * 10)

    return progress


def describe(facts: EngineFacts, load: EngineLoad, threads: int) -> str:
    """One line: precision, CPU threads, memory, rates."""
    mib = facts.total_pages * facts.page_bytes / (1 << 20)
    return (
        f"{facts.precision} on the {facts.kernel} rung, {threads} CPU threads; KV arena {mib:.0f} MiB = "
        f"{facts.total_pages} pages of {facts.page_tokens} tokens; context "
        f"{facts.context_tokens} tokens; {_rates(load)}"
    )


def _rates(load: EngineLoad) -> str:
    prefill = _measured(load.prefill_tokens_per_s, ".0f", "tokens/s")
    base = _measured(load.step_base_ms, ".1f", "ms")
    per_sequence = _measured(load.step_per_sequence_ms, ".1f", "ms")
    return f"prefill {prefill}, step {base} + {per_sequence} per sequence"


def _measured(rate: float | None, digits: str, unit: str) -> str:
    return "(not measured)" if rate is None else f"{rate:{digits}} {unit}"
