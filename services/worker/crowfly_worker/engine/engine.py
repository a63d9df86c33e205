"""The Llama engine behind the port: the step that moves every sequence on by one."""

import logging
import time
from collections.abc import Sequence as Ids

from crowfly_worker.engine.arena import PageArena
from crowfly_worker.engine.port import (
    Claimed,
    EngineFacts,
    EngineLoad,
    FinishReason,
    Refused,
    SamplingParams,
    StepEvent,
)
from crowfly_worker.engine.rates import Rates
from crowfly_worker.engine.roster import Roster
from crowfly_worker.engine.runner import Runner
from crowfly_worker.engine.sampler import sample
from crowfly_worker.engine.scheduler import STEP_TOKENS, Work, schedule
from crowfly_worker.engine.sequence import Sequence

_log = logging.getLogger(__name__)


class LlamaEngine:
    """Implements `port.Engine`. `rates` is None where nothing was measured."""

    def __init__(
        self,
        facts: EngineFacts,
        runner: Runner,
        arena: PageArena,
        end_ids: frozenset[int],
        *,
        rates: Rates | None = None,
        step_tokens: int = STEP_TOKENS,
    ) -> None:
        self.facts = facts
        self._runner = runner
        self._roster = Roster(facts, arena)
        self._end_ids = end_ids
        self._step_tokens = step_tokens
        # Written by the device's thread alone.
        self._rates = rates
        self._prefilled_total = 0
        self._generated_total = 0
        self._cancelled_total = 0
        self._turns = 0

    def claim(self, id: str, prompt_tokens: int, max_tokens: int) -> Claimed | Refused:
        return self._roster.claim(id, prompt_tokens, max_tokens)

    def release(self, id: str) -> None:
        self._roster.release(id)

    def submit(self, id: str, prompt: Ids[int], sampling: SamplingParams) -> None:
        self._roster.submit(id, prompt, sampling)

    def cancel(self, id: str) -> None:
        self._roster.cancel(id)

    def wait(self, seconds: float) -> None:
        self._roster.wait(seconds)

    def check(self) -> None:
        """Raises `AssertionError` if a page is lost or held twice."""
        self._roster.check()

    def load(self) -> EngineLoad:
        rates, now = self._rates, self._roster.snapshot()
        return EngineLoad(
            free_pages=now.free_pages,
            largest_free_run_pages=now.largest_free_run_pages,
            claimed=now.claimed,
            running=now.running,
            waiting_prompt_tokens=now.waiting_prompt_tokens,
            prefill_tokens_per_s=rates.prefill_tokens_per_s if rates else None,
            step_base_ms=rates.step_base_ms if rates else None,
            step_per_sequence_ms=rates.step_per_sequence_ms if rates else None,
            prefilled_tokens_total=self._prefilled_total,
            generated_tokens_total=self._generated_total,
            cancelled_total=self._cancelled_total,
        )

    def step(self) -> list[StepEvent]:
        events = self._end_cancelled()
        plan = schedule(self._roster.running(), self._step_tokens)
        if not plan:
            return events
        try:
            tokens, started = self._run(plan)
        except Exception as error:  # noqa: BLE001 - whatever the device raises ends this plan alone
            _log.exception("A step of %d sequences failed", len(plan))
            return events + [self._fail(work.sequence, repr(error)) for work in plan]
        return events + self._emit(plan, tokens, started)

    def _end_cancelled(self) -> list[StepEvent]:
        cancelled = [one for one in self._roster.running() if one.cancelled]
        return [self._end(one, StepEvent(one.id, (), FinishReason.CANCELLED)) for one in cancelled]

    def _run(self, plan: list[Work]) -> tuple[list[int | None], float]:
        """A new token for each work, and when its first kernel started."""
        batch = self._runner.pack(plan)
        started = time.monotonic()
        sequences = [work.sequence for work in plan]
        tokens = sample(
            self._runner.run(batch),
            [one.sampling for one in sequences],
            [one.length for one in sequences],
        )
        self._correct_rates(plan, (time.monotonic() - started) * 1000)
        return tokens, started

    def _emit(self, plan: list[Work], tokens: list[int | None], started: float) -> list[StepEvent]:
        events = []
        for work, token in zip(plan, tokens, strict=True):
            self._turns += 1
            work.sequence.last_turn = self._turns
            first_kernel_at = started if work.sequence.computed == 0 else None
            event = self._outcome(work, token, first_kernel_at)
            if event.finish is not None:
                self._end(work.sequence, event)
            events.append(event)
        return events

    def _outcome(self, work: Work, token: int | None, first_kernel_at: float | None) -> StepEvent:
        """Take the work as done, and its token if it gave one."""
        sequence = work.sequence
        completes = work.completes
        self._prefilled_total += min(work.tokens, sequence.waiting_prompt_tokens)
        sequence.computed += work.tokens
        if sequence.cancelled:
            return StepEvent(sequence.id, (), FinishReason.CANCELLED, None, first_kernel_at)
        if token is None:
            reason = "the model's logits are not all finite numbers"
            return StepEvent(sequence.id, (), FinishReason.FAILED, reason, first_kernel_at)
        if not completes:
            return StepEvent(sequence.id, (), first_kernel_at=first_kernel_at)
        tokens, finish = self._extend(sequence, token)
        return StepEvent(sequence.id, tokens, finish, None, first_kernel_at)

    def _extend(
        self, sequence: Sequence, token: int
    ) -> tuple[tuple[int, ...], FinishReason | None]:
        self._generated_total += 1
        if token in self._end_ids:
            return (), FinishReason.STOP
        sequence.generated.append(token)
        done = len(sequence.generated) == sequence.max_tokens
        return (token,), FinishReason.LENGTH if done else None

    def _fail(self, sequence: Sequence, reason: str) -> StepEvent:
        return self._end(sequence, StepEvent(sequence.id, (), FinishReason.FAILED, reason))

    def _end(self, sequence: Sequence, last: StepEvent) -> StepEvent:
        self._roster.end(sequence)
        if last.finish is FinishReason.CANCELLED:
            self._cancelled_total += 1
        return last

    def _correct_rates(self, plan: list[Work], took_ms: float) -> None:
        if self._rates is not None:
            decode = sum(1 for work in plan if work.sequence.generated)
            prefill = sum(work.tokens for work in plan if not work.sequence.generated)
            self._rates = self._rates.corrected(decode, prefill, took_ms)
