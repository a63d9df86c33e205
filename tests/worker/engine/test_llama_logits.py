"""The network's logits are those of transformers, however a prompt is cut and packed."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from crowfly_worker.models.batch import Chunk, pack
from crowfly_worker.models.llama import Llama

if TYPE_CHECKING:
    from tests.worker.engine.conftest import Oracle

PAGE_TOKENS = 16
PAGES = list(range(3, 35))  # 512 positions


def random_ids(count: int) -> list[int]:
    dice = random.Random(count)
    return [dice.randrange(256) for _ in range(count)]


def chunked(network: Llama, ids: list[int], budget: int) -> Tensor:
    """Logits of all rows, teacher-forced, `budget` rows at a time."""
    cache = network.new_cache(40, PAGE_TOKENS)
    parts = []
    for start in range(0, len(ids), budget):
        chunk = Chunk(ids[start : start + budget], start, PAGES)
        batch = pack([chunk], PAGE_TOKENS, network.device, all_rows=True)
        parts.append(network.forward(batch, cache))
    return torch.cat(parts)


@pytest.mark.parametrize("budget", [7, 16, 100, 512])
def test_teacher_forced_logits_equal_transformers(
    network: Llama, oracle: "Oracle", budget: int, say: Callable[[str], None]
) -> None:
    differences = []
    for count in (1, 2, 15, 16, 17, 33, 100, 255, 500):
        ids = random_ids(count)
        difference = (chunked(network, ids, budget) - oracle.logits(ids)).abs().max()
        differences.append(difference.item())
    say(f"in chunks of {budget}: largest logit difference {max(differences):.1e}")
    assert max(differences) <= 1e-3


def test_a_packed_batch_gives_each_sequence_its_own_logits(
    network: Llama, oracle: "Oracle"
) -> None:
    """One step with a whole prompt, a middle chunk and a decode row of three sequences."""
    cache = network.new_cache(40, PAGE_TOKENS)
    whole, middle, decode = random_ids(5), random_ids(40), random_ids(20)
    warm = [Chunk(middle[:13], 0, [0, 1, 2]), Chunk(decode[:19], 0, [9, 5])]
    network.forward(pack(warm, PAGE_TOKENS, network.device), cache)
    step = [Chunk(whole, 0, [7]), Chunk(middle[13:], 13, [0, 1, 2]), Chunk(decode[19:], 19, [9, 5])]
    logits = network.forward(pack(step, PAGE_TOKENS, network.device), cache)
    expected = torch.stack([oracle.logits(ids)[-1] for ids in (whole, middle, decode)])
    assert (logits - expected).abs().max() <= 1e-3
