"""Engines on the byte model in fp32, and what transformers says about the same folder."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from crowfly_worker.engine.arena import PageArena
from crowfly_worker.engine.engine import LlamaEngine
from crowfly_worker.engine.port import Claimed, EngineFacts, FinishReason, SamplingParams
from crowfly_worker.engine.runner import Network, Runner
from crowfly_worker.engine.scheduler import STEP_TOKENS
from crowfly_worker.formats.config import read_config
from crowfly_worker.models.llama import Llama, load_llama

PAGE_TOKENS = 16
END_ID = 257
STEP_LIMIT = 2_000  # no test needs as many; a sequence that never ends fails here


class Oracle:
    """transformers in fp32."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """fp32 [len(ids), vocab], teacher-forced."""
        logits: Tensor = self._model(torch.tensor([ids]), use_cache=False).logits[0]
        return logits

    @torch.inference_mode()
    def greedy(self, prompt: Sequence[int], max_tokens: int) -> "Expected":
        """Without a cache, so that nothing of it can be wrong."""
        answer = Expected([], [])
        for _ in range(max_tokens):
            last = self.logits([*prompt, *answer.tokens])[-1]
            first, second = last.topk(2).values.tolist()
            answer.gaps.append(first - second)
            token = int(last.argmax())
            if token == END_ID:
                break
            answer.tokens.append(token)
        return answer


@dataclass
class Expected:
    tokens: list[int]
    gaps: list[float]  # between the best two logits at each token, and at the end token


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    error: str | None = None
    first_kernel_at: list[float] = field(default_factory=list)


Answers = Mapping[str, Answer]


class Client:
    """Asks an engine and collects the answers."""

    def __init__(self, engine: LlamaEngine) -> None:
        self.engine = engine
        self.answers: dict[str, Answer] = {}

    def ask(
        self,
        id: str,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams | None = None,
    ) -> None:
        assert isinstance(self.engine.claim(id, len(prompt), max_tokens), Claimed)
        self.engine.submit(id, prompt, sampling or SamplingParams())
        self.answers[id] = Answer()

    def step(self) -> None:
        for event in self.engine.step():
            answer = self.answers[event.id]
            assert answer.finish is None, f"{event} came after the last event"
            answer.tokens += event.tokens
            answer.finish, answer.error = event.finish, event.error
            if event.first_kernel_at is not None:
                answer.first_kernel_at.append(event.first_kernel_at)
        self.engine.check()

    def finish(self) -> dict[str, Answer]:
        """Step until all have ended."""
        for _ in range(STEP_LIMIT):
            if self.engine.load().running == 0:
                return self.answers
            self.step()
        raise AssertionError(f"still running after {STEP_LIMIT} steps: {self.engine.load()}")


MakeClient = Callable[..., Client]


@pytest.fixture(scope="session")
def network(byte_model: Path) -> Llama:
    config = read_config(byte_model)
    return load_llama(byte_model, config, torch.float32, torch.device("cpu"))


@pytest.fixture(scope="session")
def oracle_of() -> type[Oracle]:
    """For another folder than the byte model's."""
    return Oracle


@pytest.fixture(scope="session")
def oracle(byte_model: Path) -> Oracle:
    return Oracle(byte_model)


@pytest.fixture
def make_client(network: Llama) -> MakeClient:
    """A client of a fresh engine; by default on the byte model with room for 16 contexts."""

    def make(
        pages: int = 512,
        step_tokens: int = STEP_TOKENS,
        runs: Network = network,
        end_ids: frozenset[int] = frozenset({END_ID}),
    ) -> Client:
        facts = EngineFacts(
            device_uuid=None,
            context_tokens=network.config.context_tokens,
            vocab_size=network.config.vocab_size,
            precision="fp32",
            kernel="torch",
            page_tokens=PAGE_TOKENS,
            total_pages=pages,
            page_bytes=2 * 4 * PAGE_TOKENS * 2 * 32 * 4,
        )
        runner = Runner(runs, network.new_cache(pages, PAGE_TOKENS))
        arena = PageArena(pages)
        return Client(LlamaEngine(facts, runner, arena, end_ids, step_tokens=step_tokens))

    return make


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """16 prompts of 1 to 100 random bytes."""
    dice = random.Random(11)
    return [[dice.randrange(256) for _ in range(dice.randint(1, 100))] for _ in range(16)]
