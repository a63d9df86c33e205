"""A GGUF file becomes a folder with the same logits and the same token ids, or a clear refusal."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from crowfly_worker.formats.config import ModelConfig, read_config
from crowfly_worker.formats.convert import convert, main
from crowfly_worker.formats.errors import FormatError
from crowfly_worker.models.batch import Chunk, pack
from crowfly_worker.models.llama import Llama, load_llama

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TEMPLATE = "{{ messages }}"
Tensors = dict[str, torch.Tensor]


def gguf_name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """As llama.cpp's own converter does it (convert_hf_to_gguf.py, LlamaModel.permute)."""
    rows, hidden = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, hidden)
    return halves.swapaxes(1, 2).reshape(rows, hidden)


def write_gguf(
    path: Path,
    config: ModelConfig,
    tensors: Tensors,
    tokens: list[str],
    change: Callable[[Any], object] = lambda writer: None,
    arch: str = "llama",
    pre: str = "gpt-2",
) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context_tokens)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3] * (len(tokens) - 256))
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_chat_template(TEMPLATE)
    change(writer)
    heads = {"q_proj": config.heads, "k_proj": config.kv_heads}
    for name, tensor in tensors.items():
        kind = name.split(".")[-2]
        written = permuted(tensor, heads[kind]) if kind in heads else tensor
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(written.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def config(byte_model: Path) -> ModelConfig:
    return read_config(byte_model)


@pytest.fixture(scope="module")
def tensors(byte_model: Path) -> Tensors:
    """The byte model's, rounded to what bf16 can hold, in fp32."""
    loaded: Tensors = load_file(byte_model / "model.safetensors")
    return {name: tensor.bfloat16().float() for name, tensor in loaded.items()}


@pytest.fixture(scope="module")
def tokens(byte_model: Path) -> list[str]:
    """The byte model's bytes and special tokens; "ab" and "abc" are merges of our own."""
    tokenizer = Tokenizer.from_file(str(byte_model / "tokenizer.json"))
    names = [tokenizer.id_to_token(id) for id in range(260)]
    names[1], names[2] = "ab", "abc"
    return [name for name in names if name is not None]


@pytest.fixture
def source(tmp_path: Path, config: ModelConfig, tensors: Tensors, tokens: list[str]) -> Path:
    return write_gguf(tmp_path / "model.gguf", config, tensors, tokens)


def logits(folder: Path) -> torch.Tensor:
    network: Llama = load_llama(folder, read_config(folder), torch.float32, torch.device("cpu"))
    chunk = Chunk(list(range(60)), 0, [0, 1, 2, 3])
    return network.forward(
        pack([chunk], 16, network.device, all_rows=True), network.new_cache(4, 16)
    )


def test_a_converted_model_has_the_originals_logits(
    byte_model: Path,
    source: Path,
    tensors: Tensors,
    tmp_path: Path,
    say: Callable[[str], None],
) -> None:
    convert(source, tmp_path / "converted", lambda done, total: None)
    original = tmp_path / "original"
    original.mkdir()
    save_file(tensors, original / "model.safetensors")
    (original / "config.json").write_bytes((byte_model / "config.json").read_bytes())
    difference = (logits(tmp_path / "converted") - logits(original)).abs().max().item()
    say(f"largest logit difference after conversion {difference:.1e}")
    assert difference <= 1e-3


def test_the_other_files_of_the_folder_say_the_same(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "converted"
    convert(source, folder, lambda done, total: None)
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert json.loads((folder / "generation_config.json").read_text()) == {
        "bos_token_id": 256,
        "eos_token_id": 257,
    }
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text())
    assert tokenizer_config["chat_template"] == TEMPLATE
    assert tokenizer_config["eos_token"] == "<|eos|>"
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {
        torch.bfloat16
    }


def test_merges_and_special_tokens_are_kept(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "converted", lambda done, total: None)
    tokenizer = Tokenizer.from_file(str(tmp_path / "converted" / "tokenizer.json"))
    assert tokenizer.encode("abcx<|im_start|>ab 12").ids == [2, ord("x"), 258, 1, 32, 49, 50]
    assert tokenizer.decode([195, 169, 257, 33]) == "é!"


def test_a_tied_model_has_no_head(
    tmp_path: Path, config: ModelConfig, tensors: Tensors, tokens: list[str]
) -> None:
    tied = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
    source = write_gguf(tmp_path / "tied.gguf", config, tied, tokens)
    convert(source, tmp_path / "converted", lambda done, total: None)
    assert read_config(tmp_path / "converted").tie_embeddings


def test_progress_is_one_json_object_per_line(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "crowfly_worker.formats.convert"]
    ran = subprocess.run(
        [*command, source, tmp_path / "deep" / "converted"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    steps = [json.loads(line) for line in ran.stdout.splitlines()]
    assert steps == [{"done": i, "total": 40} for i in range(1, 41)]


def assert_refused(source: Path, match: str) -> None:
    """And nothing is left behind."""
    before = sorted(source.parent.iterdir())
    with pytest.raises(FormatError, match=match):
        convert(source, source.parent / "converted", lambda done, total: None)
    assert sorted(source.parent.iterdir()) == before


@pytest.mark.parametrize("keep", [0, 3, 10, 200, 20_000, 1_000_000, -4096])
def test_a_truncated_file_is_refused(source: Path, keep: int) -> None:
    source.write_bytes(source.read_bytes()[:keep])
    assert_refused(source, "model.gguf is not a whole GGUF file")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "text.gguf"
    source.write_text("no model at all, but long enough to look at", encoding="utf-8")
    assert_refused(source, "is not a whole GGUF file")


def test_counts_beyond_the_file_are_refused(source: Path) -> None:
    data = bytearray(source.read_bytes())
    data[16:24] = (2**62).to_bytes(8, "little")  # the number of metadata keys
    source.write_bytes(data)
    assert_refused(source, "is not a whole GGUF file")


def test_another_architecture_is_refused(
    tmp_path: Path, config: ModelConfig, tensors: Tensors, tokens: list[str]
) -> None:
    source = write_gguf(tmp_path / "m.gguf", config, tensors, tokens, arch="qwen2")
    assert_refused(source, "architecture 'qwen2' is not supported")


def test_another_tokenizer_is_refused(
    tmp_path: Path, config: ModelConfig, tensors: Tensors, tokens: list[str]
) -> None:
    source = write_gguf(tmp_path / "m.gguf", config, tensors, tokens, pre="unheard-of")
    assert_refused(source, "pre-tokenizer 'unheard-of' is not supported")


def test_scaled_rope_is_refused(
    tmp_path: Path, config: ModelConfig, tensors: Tensors, tokens: list[str]
) -> None:
    def scaled(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)

    source = write_gguf(tmp_path / "m.gguf", config, tensors, tokens, scaled)
    assert_refused(source, r"llama\.rope\.scaling\.type is not supported")


def test_a_missing_tensor_is_refused(
    tmp_path: Path, config: ModelConfig, tensors: Tensors, tokens: list[str]
) -> None:
    missing = "model.layers.2.mlp.down_proj.weight"
    rest = {name: tensor for name, tensor in tensors.items() if name != missing}
    source = write_gguf(tmp_path / "m.gguf", config, rest, tokens)
    assert_refused(source, f"tensor {missing} is missing")


def test_a_tensor_that_no_llama_has_is_refused(
    tmp_path: Path, config: ModelConfig, tensors: Tensors, tokens: list[str]
) -> None:
    def more(writer: Any) -> None:
        writer.add_tensor("rope_freqs.weight", np.ones(16, dtype=np.float32))

    source = write_gguf(tmp_path / "m.gguf", config, tensors, tokens, more)
    assert_refused(source, r"rope_freqs\.weight is not part of a plain Llama")


def test_a_target_that_exists_is_left_alone(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "converted"
    target.mkdir()
    with pytest.raises(FileExistsError, match="exists already"):
        convert(source, target, lambda done, total: None)
    assert list(target.iterdir()) == []


def test_the_command_says_what_is_wrong_and_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nowhere.gguf"), str(tmp_path / "out")]) == 2
    assert "nowhere.gguf cannot be read" in capsys.readouterr().err
    assert main(["one-argument"]) == 2
    assert "usage: python -m crowfly_worker.formats.convert" in capsys.readouterr().err


def test_nothing_is_seen_until_it_is_whole(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "converted"
    seen: list[bool] = []
    convert(source, target, lambda done, total: seen.append(target.exists()))
    assert seen == [False] * 40
    assert target.is_dir()


def test_a_tensor_of_another_shape_is_refused(
    tmp_path: Path, config: ModelConfig, tensors: Tensors, tokens: list[str]
) -> None:
    changed = tensors | {"model.layers.0.self_attn.q_proj.weight": torch.zeros(96, 128)}
    source = write_gguf(tmp_path / "m.gguf", config, changed, tokens)
    assert_refused(source, r"layers\.0\.self_attn\.q_proj\.weight has shape \[96, 128\]")
