"""Sequences that end early: cancelled, or failed on their own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from crowfly_worker.engine.port import FinishReason, SamplingParams
from crowfly_worker.models.batch import Batch
from crowfly_worker.models.llama import Llama

if TYPE_CHECKING:
    from tests.worker.engine.conftest import Client


class Faulty:
    """A network that answers NaN for one row, or raises, in the next pass alone."""

    def __init__(self, network: Llama) -> None:
        self._network = network
        self.nan_row: int | None = None
        self.raises: Exception | None = None
        self.during: Callable[[], None] | None = None

    @property
    def device(self) -> torch.device:
        return self._network.device

    def forward(self, batch: Batch, cache: Tensor) -> Tensor:
        if self.during is not None:
            self.during()
        if self.raises is not None:
            error, self.raises = self.raises, None
            raise error
        logits = self._network.forward(batch, cache)
        if self.nan_row is not None:
            logits = logits.clone()
            logits[self.nan_row, 3] = torch.nan
            self.nan_row = None
        return logits


@contextmanager
def pages_come_back(client: "Client") -> Iterator[None]:
    free = client.engine.load().free_pages
    yield
    client.engine.check()
    assert client.engine.load().free_pages == free


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_cancelled_sequence_ends_in_the_next_step(
    make_client: Callable[..., "Client"], steps: int
) -> None:
    """Before its first step, in the middle of its prompt, and in decode."""
    client = make_client(step_tokens=32)
    with pages_come_back(client):
        client.ask("a", [5] * 60, 50)
        for _ in range(steps):
            client.step()
        before = list(client.answers["a"].tokens)
        client.engine.cancel("a")
        client.step()
        assert client.answers["a"].finish is FinishReason.CANCELLED
        assert client.answers["a"].tokens == before
    assert client.engine.load().cancelled_total == 1


def test_a_cancel_during_a_step_ends_it_in_that_step(
    make_client: Callable[..., "Client"], network: Llama
) -> None:
    faulty = Faulty(network)
    client = make_client(runs=faulty)
    with pages_come_back(client):
        client.ask("a", [5] * 10, 50)
        client.step()
        faulty.during = lambda: client.engine.cancel("a")
        client.step()
        assert client.answers["a"].finish is FinishReason.CANCELLED


def test_cancelling_an_unknown_or_ended_sequence_is_no_error(
    make_client: Callable[..., "Client"],
) -> None:
    client = make_client()
    client.ask("a", [5], 1)
    client.finish()
    client.engine.cancel("a")
    client.engine.cancel("unknown")
    assert client.engine.step() == []
    assert client.engine.load().cancelled_total == 0


def test_fifty_cancelled_in_a_row_leave_no_page_behind(
    make_client: Callable[..., "Client"],
) -> None:
    client = make_client(pages=32)
    with pages_come_back(client):
        for i in range(50):
            client.ask(str(i), [i] * (1 + i), 400)
            for _ in range(i % 4):
                client.step()
            client.engine.cancel(str(i))
            client.step()
            assert client.engine.load().running == 0


def test_a_sequence_with_nan_logits_fails_alone(
    make_client: Callable[..., "Client"], network: Llama, prompts: list[list[int]]
) -> None:
    lone = make_client()
    lone.ask("b", prompts[1], 20)
    expected = lone.finish()["b"]
    faulty = Faulty(network)
    client = make_client(runs=faulty)
    with pages_come_back(client):
        for id, prompt in zip("abc", prompts, strict=False):
            client.ask(id, prompt, 20)
        client.step()
        faulty.nan_row = 0
        answers = client.finish()
    assert answers["a"].finish is FinishReason.FAILED
    assert answers["a"].error == "the model's logits are not all finite numbers"
    assert answers["b"].tokens == expected.tokens
    assert answers["b"].finish is expected.finish
    assert answers["c"].finish in (FinishReason.LENGTH, FinishReason.STOP)


def test_a_step_that_raises_fails_its_own_sequences_and_the_next_goes_on(
    make_client: Callable[..., "Client"], network: Llama
) -> None:
    faulty = Faulty(network)
    client = make_client(runs=faulty, step_tokens=16)
    with pages_come_back(client):
        client.ask("in the step", [1] * 16, 3)
        client.ask("waiting", [2] * 16, 3)
        faulty.raises = RuntimeError("out of memory")
        client.step()
        assert client.answers["in the step"].finish is FinishReason.FAILED
        assert client.answers["in the step"].error == "RuntimeError('out of memory')"
        assert client.finish()["waiting"].finish in (FinishReason.LENGTH, FinishReason.STOP)


def test_every_chunk_of_a_prompt_is_an_event(make_client: Callable[..., "Client"]) -> None:
    engine = make_client(step_tokens=16).engine
    engine.claim("a", 40, 3)
    engine.submit("a", [1] * 40, SamplingParams())
    chunks = [engine.step() for _ in range(2)]
    assert [[(event.id, event.tokens) for event in step] for step in chunks] == [[("a", ())]] * 2
    (first,) = engine.step()
    assert len(first.tokens) == 1


def test_the_first_kernel_is_timed_once_per_sequence(make_client: Callable[..., "Client"]) -> None:
    client = make_client(step_tokens=16)
    client.ask("a", [1] * 40, 3)
    client.ask("b", [2] * 40, 3)
    answers = client.finish()
    (a,), (b,) = answers["a"].first_kernel_at, answers["b"].first_kernel_at
    assert a < b
