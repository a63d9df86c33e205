"""Models that every test may use: a tiny one made here, and the real small one if it was pulled."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 4 layers whose tokens are single bytes; context 512, fp32, under 4 MB.

    Ids 256 to 259 are bos, eos, <|im_start|> and <|im_end|>.
    """
    folder = tmp_path_factory.mktemp("byte-model")
    _byte_llama(context_tokens=512).save_pretrained(folder)
    _byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, in bf16, as `crowfly model pull` leaves it."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "crowfly" / "models" / "smollm2"
    if not folder.is_dir():
        pytest.fail("run: crowfly model pull smollm2")
    return folder


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a measured number among pytest's own lines, captured or not."""
    plugins = request.config.pluginmanager
    capture, reporter = plugins.get_plugin("capturemanager"), plugins.get_plugin("terminalreporter")
    assert capture is not None
    assert reporter is not None

    def write(text: str) -> None:
        with capture.global_and_fixture_disabled():
            reporter.write_line(f"  {text}")

    return write


def _byte_llama(context_tokens: int) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context_tokens,
        bos_token_id=256,
        eos_token_id=257,
        tie_word_embeddings=False,
        initializer_range=0.2,  # ten times the usual: logits far enough apart to compare texts
    )
    return LlamaForCausalLM(config).eval().float()


def _byte_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab=_byte_names(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|eos|>"
    )
    fast.chat_template = (
        "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return fast


def _byte_names() -> dict[str, int]:
    """Byte-level BPE's character for each byte: itself where printable, else from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {chr(byte): byte for byte in printable}
    return names | {chr(256 + i): byte for i, byte in enumerate(others)}
