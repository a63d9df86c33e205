"""The engine on a CUDA device gives what transformers gives on the CPU, in fp32."""

from pathlib import Path

import pytest
import torch

from crowfly_worker.engine.build import load_engine
from crowfly_worker.engine.port import SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

PROMPTS = [[97], list(range(40)), [7] * 130]
MAX_TOKENS = 32


def test_greedy_answers_of_a_crowd_equal_transformers(byte_model: Path) -> None:
    engine = load_engine(byte_model, host_free_bytes=0, precision="fp32")
    assert engine.facts.device_uuid is not None
    answers: dict[str, list[int]] = {str(i): [] for i in range(len(PROMPTS))}
    for i, prompt in enumerate(PROMPTS):
        engine.claim(str(i), len(prompt), MAX_TOKENS)
        engine.submit(str(i), prompt, SamplingParams())
    while engine.load().running:
        for event in engine.step():
            assert event.error is None
            answers[event.id] += event.tokens
    engine.check()
    assert list(answers.values()) == [expected(byte_model, prompt) for prompt in PROMPTS]


@torch.inference_mode()
def expected(folder: Path, prompt: list[int]) -> list[int]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    made = model.generate(torch.tensor([prompt]), max_new_tokens=MAX_TOKENS, do_sample=False)
    answer: list[int] = made[0, len(prompt) :].tolist()
    return answer[: answer.index(257)] if 257 in answer else answer
