"""What goes into a step."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from crowfly_worker.engine.port import SamplingParams
from crowfly_worker.engine.scheduler import LEAST_PREFILL_TOKENS, STEP_TOKENS, schedule
from crowfly_worker.engine.sequence import Sequence


def sequence(id: str, prompt: int, computed: int = 0, generated: int = 0) -> Sequence:
    return Sequence(
        id, (1,) * prompt, 100, (), SamplingParams(), generated=[2] * generated, computed=computed
    )


def planned(sequences: list[Sequence], budget: int) -> list[tuple[str, int]]:
    return [(work.sequence.id, work.tokens) for work in schedule(sequences, budget)]


def test_decode_comes_first_and_prompts_fill_the_rest_in_their_order() -> None:
    waiting = [sequence("new", 50), sequence("half", 50, computed=20), sequence("late", 50)]
    decoding = sequence("decoding", 10, computed=12, generated=3)
    assert planned([*waiting, decoding], 64) == [("decoding", 1), ("new", 50), ("half", 13)]


def test_a_prompt_moves_on_even_when_decode_fills_the_budget() -> None:
    decoding = [sequence(str(i), 10, computed=10, generated=1) for i in range(40)]
    plan = planned([*decoding, sequence("new", 50)], 32)
    assert plan == [*((str(i), 1) for i in range(32)), ("new", LEAST_PREFILL_TOKENS)]


def test_more_in_decode_than_the_budget_holds_take_turns() -> None:
    crowd = [sequence(str(i), 10, computed=10, generated=1) for i in range(2_000)]
    turns = itertools.count(1)
    for _ in range(2 * 2_000 // STEP_TOKENS):
        plan = schedule(crowd, STEP_TOKENS)
        assert len(plan) == STEP_TOKENS
        for work in plan:
            work.sequence.generated.append(2)
            work.sequence.computed += 1
            work.sequence.last_turn = next(turns)
    made = [len(one.generated) - 1 for one in crowd]
    assert sum(made) == 2 * 2_000 // STEP_TOKENS * STEP_TOKENS
    assert set(made) == {1, 2}


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert planned([], 64) == []


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 299)), max_size=20),
    st.integers(1, 300),
)
def test_a_plan_keeps_its_bounds(shapes: list[tuple[int, int]], budget: int) -> None:
    sequences = [sequence(str(i), p, min(c, p - 1)) for i, (p, c) in enumerate(shapes)]
    plan = schedule(sequences, budget)
    assert all(1 <= work.tokens <= work.sequence.pending for work in plan)
    assert len({work.sequence.id for work in plan}) == len(plan)
    prefill = sum(work.tokens for work in plan if work.sequence.pending > 1)
    assert prefill <= max(budget, LEAST_PREFILL_TOKENS)
    assert sum(work.tokens for work in plan) <= budget + LEAST_PREFILL_TOKENS
    assert bool(plan) == bool(sequences)
