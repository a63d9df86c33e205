"""The real small model against transformers: 20 prompts of 1 to 500 tokens, in fp32."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from tokenizers import Tokenizer

from crowfly_worker.engine.build import load_engine
from crowfly_worker.engine.engine import LlamaEngine
from crowfly_worker.engine.port import SamplingParams
from crowfly_worker.formats.config import read_config
from crowfly_worker.models.batch import Chunk, pack
from crowfly_worker.models.llama import Llama, load_llama

if TYPE_CHECKING:
    from tests.worker.engine.conftest import Oracle

    OracleOf = Callable[[Path], Oracle]

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

TEXT = Path(__file__).parents[3] / "LICENSE"
LENGTHS = [1, 2, 3, 5, 8, 15, 16, 17, 21, 32, 33, 40, 55, 64, 80, 100, 128, 150, 300, 500]
MAX_TOKENS = 16
PAGE_TOKENS = 16
CHUNK_TOKENS = 100
TIE = 1e-3


def test_logits_and_greedy_texts_equal_transformers(
    smollm2: Path, oracle_of: "OracleOf", say: Callable[[str], None]
) -> None:
    prompts = real_prompts(smollm2)
    answers = greedy_answers(
        load_engine(smollm2, host_free_bytes=8 << 30, precision="fp32"), prompts
    )
    network = load_llama(smollm2, read_config(smollm2), torch.float32, torch.device("cpu"))
    oracle, largest, ties = oracle_of(smollm2), 0.0, 0
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = [*prompt, *answer]
        theirs, ours = oracle.logits(ids), teacher_forced(network, ids)
        largest = max(largest, (ours - theirs).abs().max().item())
        ties += greedy_ties(answer, theirs[len(prompt) - 1 :])
    say(f"largest logit difference {largest:.1e}, {ties} of {len(prompts)} texts end in a tie")
    assert largest <= 1e-3


def test_the_capital_of_france_is_paris(smollm2: Path) -> None:
    """In this machine's own precision, as a raw completion."""
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    prompt = tokenizer.encode("The capital of France is").ids
    (answer,) = greedy_answers(load_engine(smollm2, host_free_bytes=8 << 30), [prompt])
    assert tokenizer.decode(answer).startswith(" Paris.")


def real_prompts(folder: Path) -> list[list[int]]:
    """Pieces of English, each from another place."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(TEXT.read_text(encoding="utf-8")).ids
    return [ids[97 * i : 97 * i + length] for i, length in enumerate(LENGTHS)]


def greedy_answers(engine: LlamaEngine, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """All in one crowd."""
    answers: list[list[int]] = [[] for _ in prompts]
    for i, prompt in enumerate(prompts):
        engine.claim(str(i), len(prompt), MAX_TOKENS)
        engine.submit(str(i), prompt, SamplingParams())
    while engine.load().running:
        for event in engine.step():
            assert event.error is None
            answers[int(event.id)] += event.tokens
    engine.check()
    return answers


def teacher_forced(network: Llama, ids: list[int]) -> torch.Tensor:
    """Cut into chunks as a busy engine would."""
    pages = list(range(-(-len(ids) // PAGE_TOKENS)))
    cache, parts = network.new_cache(len(pages), PAGE_TOKENS), []
    for start in range(0, len(ids), CHUNK_TOKENS):
        chunk = Chunk(ids[start : start + CHUNK_TOKENS], start, pages)
        batch = pack([chunk], PAGE_TOKENS, network.device, all_rows=True)
        parts.append(network.forward(batch, cache))
    return torch.cat(parts)


def greedy_ties(answer: list[int], logits: torch.Tensor) -> bool:
    """Each token must be transformers' own, up to the first where its best two are within `TIE`.

    Teacher-forced: up to there both have the same context. True if there is such a tie.
    """
    for token, row in zip(answer, logits, strict=False):
        first, second = row.topk(2).values.tolist()
        if token != int(row.argmax()):
            assert first - second <= TIE
            return True
    return False
