"""Sampling depends on the logits, the parameters, the seed and the position; on nothing else."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crowfly_worker.engine.port import SamplingParams
from crowfly_worker.engine.sampler import sample, uniform

# Probabilities 0.5, 0.1, 0.3, 0.05, 0.05
LOGITS = torch.tensor([[math.log(p) for p in (0.5, 0.1, 0.3, 0.05, 0.05)]])
DRAWS = 4_000


def shares(params: SamplingParams) -> dict[int, float]:
    rows = LOGITS.expand(DRAWS, -1)
    tokens = sample(rows, [params] * DRAWS, range(DRAWS))
    return {token: count / DRAWS for token, count in Counter(tokens).items() if token is not None}


def test_draws_follow_the_probabilities() -> None:
    expected = {0: 0.5, 1: 0.1, 2: 0.3, 3: 0.05, 4: 0.05}
    assert shares(SamplingParams(temperature=1.0, seed=1)) == pytest.approx(expected, abs=0.03)


def test_top_k_keeps_the_k_likeliest() -> None:
    expected = {0: 0.625, 2: 0.375}
    params = SamplingParams(temperature=1.0, top_k=2, seed=2)
    assert shares(params) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.4, {0}), (0.79, {0, 2}), (0.85, {0, 1, 2}), (1.0, {0, 1, 2, 3, 4})]
)
def test_top_p_keeps_the_fewest_that_hold_it(top_p: float, kept: set[int]) -> None:
    assert set(shares(SamplingParams(temperature=1.0, top_p=top_p, seed=3))) == kept


def test_heat_flattens() -> None:
    hot = shares(SamplingParams(temperature=100.0, seed=4))
    assert hot == pytest.approx(dict.fromkeys(range(5), 0.2), abs=0.03)


@pytest.mark.parametrize("temperature", [1e-6, 1e-300, 5e-324])
def test_the_coldest_is_greedy(temperature: float) -> None:
    assert shares(SamplingParams(temperature=temperature, seed=5)) == {0: 1.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_gives_no_token_and_harms_no_other(
    bad: float, temperature: float
) -> None:
    logits = torch.tensor([[0.0, 9.0], [bad, 1.0], [9.0, 0.0]])
    params = [SamplingParams(temperature=temperature, top_p=0.9)] * 3
    assert sample(logits, params, [0, 0, 0]) == [1, None, 0]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31))
def test_uniform_is_a_fraction(seed: int, position: int) -> None:
    assert 0.0 <= uniform(seed, position) < 1.0
    assert uniform(seed, position) == uniform(seed, position)


def test_uniform_never_changes() -> None:
    """Whoever continues an answer elsewhere must draw the same numbers."""
    assert uniform(0, 0) == 0.6524484863740305
    assert uniform(1, 0) == 0.36818951565166813
    assert uniform(0, 1) == 0.034011701304343944
    assert uniform(2**64 - 1, 8191) == 0.33596548367800594


def test_neighbouring_seeds_share_no_numbers() -> None:
    drawn = [uniform(seed, position) for seed in range(50) for position in range(50)]
    assert len(set(drawn)) == 2_500
    assert sum(drawn) / 2_500 == pytest.approx(0.5, abs=0.02)
