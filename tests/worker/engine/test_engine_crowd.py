"""A greedy answer in fp32 is the oracle's, alone, in a crowd, cut short or scattered."""

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

from crowfly_worker.engine.port import Claimed, FinishReason, SamplingParams

if TYPE_CHECKING:
    from tests.worker.engine.conftest import Answer, Client, Expected, Oracle

    AssertEqual = Callable[[Answer, Expected], None]

MAX_TOKENS = 64
TIE = 1e-4  # below this gap two fp32 sums in another order may disagree


@pytest.fixture(scope="module")
def expected(oracle: "Oracle", prompts: list[list[int]]) -> list["Expected"]:
    return [oracle.greedy(prompt, MAX_TOKENS) for prompt in prompts]


@pytest.fixture
def assert_equal(say: Callable[[str], None]) -> "AssertEqual":
    return partial(_assert_equal, say)


def _assert_equal(say: Callable[[str], None], answer: "Answer", expected: "Expected") -> None:
    """Token for token, excused only from the first tie on, which is then said."""
    for at, (ours, theirs) in enumerate(zip(answer.tokens, expected.tokens, strict=False)):
        if ours != theirs:
            say(f"token {at} differs; the oracle's gap there is {expected.gaps[at]:.1e}")
            assert expected.gaps[at] < TIE
            return
    assert answer.tokens == expected.tokens
    ended = len(expected.tokens) < MAX_TOKENS
    assert answer.finish is (FinishReason.STOP if ended else FinishReason.LENGTH)


def test_each_alone(
    make_client: Callable[..., "Client"],
    prompts: list[list[int]],
    expected: list["Expected"],
    assert_equal: "AssertEqual",
) -> None:
    client = make_client()
    for i, prompt in enumerate(prompts):
        client.ask(str(i), prompt, MAX_TOKENS)
        client.finish()
    for i, one in enumerate(expected):
        assert_equal(client.answers[str(i)], one)


@pytest.mark.parametrize("step_tokens", [24, 256])
def test_all_at_once(
    make_client: Callable[..., "Client"],
    prompts: list[list[int]],
    expected: list["Expected"],
    step_tokens: int,
    assert_equal: "AssertEqual",
) -> None:
    client = make_client(step_tokens=step_tokens)
    for i, prompt in enumerate(prompts):
        client.ask(str(i), prompt, MAX_TOKENS)
    answers = client.finish()
    for i, one in enumerate(expected):
        assert_equal(answers[str(i)], one)


def test_a_crowd_over_the_budget_moves_on_in_turns(make_client: Callable[..., "Client"]) -> None:
    client = make_client(step_tokens=8, end_ids=frozenset())
    for i in range(20):
        client.ask(str(i), [i], 100)
    for _ in range(5):
        client.step()
    assert [len(answer.tokens) for answer in client.answers.values()] == [2] * 20


def test_joining_at_random_moments_with_two_cancelled(
    make_client: Callable[..., "Client"],
    prompts: list[list[int]],
    expected: list["Expected"],
    assert_equal: "AssertEqual",
) -> None:
    client, dice = make_client(step_tokens=64), random.Random(5)
    for i, prompt in enumerate(prompts):
        client.ask(str(i), prompt, MAX_TOKENS)
        for _ in range(dice.randrange(6)):
            client.step()
    assert {"3", "12"} <= {str(i) for i in range(16) if client.answers[str(i)].finish is None}
    for id in ("3", "12"):
        client.engine.cancel(id)
    answers = client.finish()
    for i, one in enumerate(expected):
        answer = answers[str(i)]
        if str(i) in ("3", "12"):
            assert answer.finish is FinishReason.CANCELLED
            assert answer.tokens == one.tokens[: len(answer.tokens)]
        else:
            assert_equal(answer, one)
    assert client.engine.load().cancelled_total == 2


def test_scattered_pages_give_the_same_tokens(
    make_client: Callable[..., "Client"],
    prompts: list[list[int]],
    expected: list["Expected"],
    assert_equal: "AssertEqual",
) -> None:
    longest = max(range(16), key=lambda i: len(prompts[i]))
    client = make_client(pages=40)
    for page in range(40):
        assert client.engine.claim(f"wall-{page}", 1, 1) == Claimed(pages=1)
    for page in range(0, 40, 2):
        client.engine.release(f"wall-{page}")
    assert client.engine.load().largest_free_run_pages == 1
    client.ask("scattered", prompts[longest], MAX_TOKENS)
    assert_equal(client.finish()["scattered"], expected[longest])


def test_one_new_token_from_a_prompt_that_fills_the_pages_exactly(
    make_client: Callable[..., "Client"], oracle: "Oracle"
) -> None:
    client = make_client(pages=2)
    prompt = list(range(32))
    client.ask("exact", prompt, 1)
    assert client.finish()["exact"].tokens == oracle.greedy(prompt, 1).tokens


def test_the_end_token_stops_the_answer_and_is_not_part_of_it(
    make_client: Callable[..., "Client"], prompts: list[list[int]], expected: list["Expected"]
) -> None:
    end = expected[0].tokens[5]
    before = expected[0].tokens.index(end)
    client = make_client(end_ids=frozenset({end}))
    client.ask("a", prompts[0], MAX_TOKENS)
    answer = client.finish()["a"]
    assert (answer.tokens, answer.finish) == (expected[0].tokens[:before], FinishReason.STOP)
    assert client.engine.load().generated_tokens_total == before + 1
    assert client.engine.load().free_pages == client.engine.facts.total_pages


def test_a_seed_gives_the_same_tokens_alone_and_in_a_crowd(
    make_client: Callable[..., "Client"], prompts: list[list[int]]
) -> None:
    ways = [
        SamplingParams(temperature=0.8 + i / 10, top_k=(0, 40)[i % 2], top_p=(1.0, 0.9)[i % 3 == 0])
        for i in range(16)
    ]
    sampled = [SamplingParams(w.temperature, w.top_k, w.top_p, i) for i, w in enumerate(ways)]
    crowd, lone = make_client(step_tokens=40), make_client()
    for i, prompt in enumerate(prompts):
        crowd.ask(str(i), prompt, 32, sampled[i])
    crowd.finish()
    for i, prompt in enumerate(prompts):
        lone.ask(str(i), prompt, 32, sampled[i])
        lone.finish()
    assert {id: one.tokens for id, one in crowd.answers.items()} == {
        id: one.tokens for id, one in lone.answers.items()
    }
    assert len({tuple(one.tokens) for one in lone.answers.values()}) == 16


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=1e-6, seed=1),
        SamplingParams(temperature=1.0, top_k=1, seed=2),
        SamplingParams(temperature=1.0, top_p=1e-9, seed=3),
        SamplingParams(temperature=0.0, seed=4),
    ],
    ids=["cold", "top-1", "nucleus-of-one", "seeded"],
)
def test_every_way_to_say_greedy_is_greedy(
    make_client: Callable[..., "Client"],
    prompts: list[list[int]],
    expected: list["Expected"],
    sampling: SamplingParams,
    assert_equal: "AssertEqual",
) -> None:
    client = make_client()
    for i, prompt in enumerate(prompts[:4]):
        client.ask(str(i), prompt, MAX_TOKENS, sampling)
        client.ask(f"neighbour-{i}", prompt, MAX_TOKENS, SamplingParams(temperature=1.5, seed=i))
    answers = client.finish()
    for i, one in enumerate(expected[:4]):
        assert_equal(answers[str(i)], one)
