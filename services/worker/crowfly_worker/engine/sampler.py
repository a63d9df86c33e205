"""From logits to a token. The same logits, seed and position give the same token in any batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from crowfly_worker.engine.port import SamplingParams

_MASK = (1 << 64) - 1


def sample(
    logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]
) -> list[int | None]:
    """One token per row, or None where the logits are not all finite numbers.

    logits fp32 [rows, vocab]; positions: of the new token in its sequence.
    """
    finite = logits.isfinite().all(dim=-1).tolist()
    greedy = logits.argmax(dim=-1).tolist()
    tokens: list[int | None] = []
    for row, (one, position) in enumerate(zip(params, positions, strict=True)):
        if not finite[row]:
            tokens.append(None)
        elif one.temperature == 0 or one.top_k == 1:
            tokens.append(greedy[row])
        else:
            tokens.append(_draw(logits[row], one, uniform(one.seed, position)))
    return tokens


def uniform(seed: int, position: int) -> float:
    """A number of [0, 1) that depends on (seed, position) alone.

    splitmix64 (Steele, Lea, Flood 2014) with the position as its counter, twice, so that
    neighbouring seeds are no shifted copies of each other. 48 bits: then `uniform * total` always
    rounds to less than `total`.
    """
    return (_splitmix64(_splitmix64(seed & _MASK) ^ position) >> 16) / (1 << 48)


def _splitmix64(state: int) -> int:
    z = (state + 0x9E3779B97F4A7C15) & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def _draw(logits: Tensor, params: SamplingParams, u: float) -> int:
    """Where the kept tokens' summed probability, in the order of their ids, first exceeds u.

    In the order of ids and not of probabilities, so that two near-equals that change places
    between batches do not change the answer. float64 on the host.
    """
    scaled = logits.double().cpu()
    scaled = (scaled - scaled.max()) / params.temperature
    if 0 < params.top_k < len(scaled):
        scaled[scaled < scaled.topk(params.top_k).values[-1]] = -torch.inf
    probabilities = scaled.softmax(dim=-1)
    if params.top_p < 1:
        probabilities[probabilities < _nucleus_floor(probabilities, params.top_p)] = 0
    summed = probabilities.cumsum(dim=-1)
    return int(torch.searchsorted(summed, summed[-1] * u, right=True))


def _nucleus_floor(probabilities: Tensor, top_p: float) -> Tensor:
    """The least probability among the fewest tokens that hold `top_p` together."""
    falling = probabilities.sort(descending=True).values
    last = int(torch.searchsorted(falling.cumsum(dim=-1), top_p))
    return falling[min(last, len(falling) - 1)]
