"""config.json in both dialects, and the refusal of what would be another network."""

import json
from pathlib import Path
from typing import Any

import pytest

from crowfly_worker.formats.config import ModelConfig, read_config
from crowfly_worker.formats.errors import ConfigError, FormatError

PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}


def folder(tmp_path: Path, generation: dict[str, Any] | None = None, **changes: Any) -> Path:
    config = {key: value for key, value in (PLAIN | changes).items() if value != "absent"}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return tmp_path


def test_a_plain_llama_is_read(tmp_path: Path) -> None:
    assert read_config(folder(tmp_path, rope_theta=5e5, tie_word_embeddings=True)) == ModelConfig(
        vocab_size=100,
        hidden_size=24,
        intermediate_size=40,
        layers=2,
        heads=6,
        kv_heads=2,
        head_dim=4,
        rms_norm_eps=1e-5,
        rope_theta=5e5,
        context_tokens=64,
        tie_embeddings=True,
        end_ids=frozenset({2}),
    )


def test_rope_parameters_of_newer_writers_are_read(tmp_path: Path) -> None:
    rope = {"rope_theta": 100000.0, "rope_type": "default"}
    assert read_config(folder(tmp_path, rope_parameters=rope)).rope_theta == 100000.0


def test_what_transformers_writes_itself_is_read(byte_model: Path) -> None:
    config = read_config(byte_model)
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (4, 4, 2, 32)
    assert (config.rope_theta, config.end_ids) == (10_000.0, frozenset({257}))


@pytest.mark.parametrize(
    ("own", "generation", "ends"),
    [
        (2, None, {2}),
        ([2, 5], None, {2, 5}),
        (2, {"eos_token_id": [7, 8]}, {7, 8}),
        (2, {}, {2}),
        ("absent", None, set()),
        (None, {"eos_token_id": 9}, {9}),
    ],
)
def test_end_tokens_come_from_generation_config_first(
    tmp_path: Path, own: object, generation: dict[str, Any] | None, ends: set[int]
) -> None:
    assert read_config(folder(tmp_path, generation, eos_token_id=own)).end_ids == ends


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "qwen2"),
        ("model_type", "absent"),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("sliding_window", 4096),
        ("quantization_config", {"bits": 4}),
        ("partial_rotary_factor", 0.5),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("rope_scaling", "linear"),
        ("rope_parameters", {"rope_theta": 1e4, "rope_type": "yarn"}),
        ("rope_theta", -1.0),
        ("rope_theta", "big"),
        ("vocab_size", "absent"),
        ("vocab_size", 0),
        ("hidden_size", -24),
        ("hidden_size", 24.5),
        ("hidden_size", True),
        ("num_hidden_layers", 10**9),
        ("max_position_embeddings", 10**12),
        ("num_key_value_heads", 4),
        ("head_dim", 5),
        ("rms_norm_eps", 0),
        ("eos_token_id", "two"),
        ("eos_token_id", [2, -1]),
    ],
)
def test_what_cannot_be_run_is_refused_by_its_key(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        read_config(folder(tmp_path, **{key: value}))


@pytest.mark.parametrize("text", ["", "{", "[]", '"llama"', "\x00\x01", "[" * 100_000])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=r"config\.json"):
        read_config(tmp_path)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        read_config(tmp_path)
    with pytest.raises(FormatError, match="is not a folder"):
        read_config(tmp_path / "nowhere")


def test_a_config_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    model, outside = tmp_path / "model", tmp_path / "outside.json"
    model.mkdir()
    outside.write_text(json.dumps(PLAIN), encoding="utf-8")
    (model / "config.json").symlink_to(outside)
    with pytest.raises(FormatError, match="leads out of its folder"):
        read_config(model)
