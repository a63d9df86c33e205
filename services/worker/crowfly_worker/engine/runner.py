"""A plan of the scheduler, run on the device."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from crowfly_worker.engine.scheduler import Work
from crowfly_worker.models.batch import Batch, Chunk, pack


class Network(Protocol):
    @property
    def device(self) -> torch.device: ...

    def forward(self, batch: Batch, cache: Tensor) -> Tensor: ...


class Runner:
    """One network and the memory of its KV cache, [layers, 2, pages, page_tokens, ...]."""

    def __init__(self, network: Network, cache: Tensor) -> None:
        self._network = network
        self._cache = cache

    def pack(self, plan: Sequence[Work]) -> Batch:
        """The plan's rows, on the device; `run` then starts the first kernel."""
        return pack((_chunk(work) for work in plan), self._cache.shape[3], self._network.device)

    def run(self, batch: Batch) -> Tensor:
        """fp32 logits [len(plan), vocab] of each work's last row."""
        return self._network.forward(batch, self._cache)


def _chunk(work: Work) -> Chunk:
    sequence = work.sequence
    ids = sequence.ids(sequence.computed, work.tokens)
    return Chunk(ids, sequence.computed, sequence.pages)
