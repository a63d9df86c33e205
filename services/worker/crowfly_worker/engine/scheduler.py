"""Which rows go into the next step. Pure: sequences in, work out."""

from collections.abc import Iterable
from dataclasses import dataclass

from crowfly_worker.engine.sequence import Sequence

# Rows of a step. A prefill chunk delays every running answer by its own time, so the budget bounds
# the pause between two tokens; and each decode row takes fp32 logits over the whole vocabulary, 0.2 MB
# for 49,152 ids, so it bounds the memory too.
STEP_TOKENS = 256

# What prefill gets even when decode rows fill the budget, so that a prompt always moves on. A step
# has fewer rows than the budget and this together.
LEAST_PREFILL_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Work:
    """The next `tokens` positions of a sequence."""

    sequence: Sequence
    tokens: int

    @property
    def completes(self) -> bool:
        """Whether the last row's logits give a new token."""
        return self.tokens == self.sequence.pending


def schedule(sequences: Iterable[Sequence], budget_tokens: int) -> list[Work]:
    """Sequences in decode, one row each; then prompts, first come first served, in chunks that fill
    what is left of the budget. More in decode than the budget holds take turns, those that have
    waited longest first: nobody starves."""
    ordered = list(sequences)
    decoding = sorted((one for one in ordered if one.pending == 1), key=lambda one: one.last_turn)
    plan = [Work(sequence, 1) for sequence in decoding[:budget_tokens]]
    left = max(budget_tokens - len(plan), LEAST_PREFILL_TOKENS)
    for sequence in ordered:
        if sequence.pending > 1 and left > 0:
            plan.append(Work(sequence, min(sequence.pending, left)))
            left -= plan[-1].tokens
    return plan
