"""`config.json` of a Hugging Face folder, read into one frozen value.

Only plain Llama is known. A feature that would change the arithmetic is refused by its key, never
ignored.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crowfly_worker.formats.errors import ConfigError
from crowfly_worker.formats.folder import ModelFolder

# Keys that must be absent, null or have this value; anything else is another network.
_PLAIN: dict[str, object] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
    "quantization_config": None,
    "partial_rotary_factor": 1,
}

# Largest values believed. The weights' shapes check most of them; these two size memory first.
_MOST = 1 << 20
_MOST_LAYERS = 1000


@dataclass(frozen=True, slots=True)
class ModelConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    context_tokens: int
    tie_embeddings: bool  # the head is the embedding
    end_ids: frozenset[int]  # an answer ends before one of these; may be empty


def read_config(folder: Path) -> ModelConfig:
    """Raises `FormatError` (mostly `ConfigError`) that names the key."""
    files = ModelFolder(folder)
    config = files.json("config.json")
    if config is None:
        raise ConfigError(f"{folder} has no config.json: not a Hugging Face model folder")
    _refuse_what_is_not_plain(config)
    heads = _count(config, "num_attention_heads")
    hidden = _count(config, "hidden_size")
    result = ModelConfig(
        vocab_size=_count(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_count(config, "intermediate_size"),
        layers=_count(config, "num_hidden_layers", most=_MOST_LAYERS),
        heads=heads,
        kv_heads=_count(config, "num_key_value_heads", default=heads),
        head_dim=_count(config, "head_dim", default=hidden // heads),
        rms_norm_eps=_positive(config, "rms_norm_eps", default=1e-6),
        rope_theta=_rope_theta(config),
        context_tokens=_count(config, "max_position_embeddings", default=2048),
        tie_embeddings=config.get("tie_word_embeddings") is True,
        end_ids=_end_ids(config, files.json("generation_config.json") or {}),
    )
    _check_heads(result)
    return result


def _refuse_what_is_not_plain(config: dict[str, Any]) -> None:
    if config.get("model_type") != "llama":
        raise ConfigError(
            f"config.json: model_type = {config.get('model_type')!r} is not supported, only 'llama'"
        )
    for key, plain in _PLAIN.items():
        value = config.get(key)
        if value is not None and value != plain:
            raise ConfigError(f"config.json: {key} = {value!r} is not supported, only {plain!r}")


def _check_heads(config: ModelConfig) -> None:
    if config.heads % config.kv_heads:
        raise ConfigError(
            f"config.json: num_attention_heads = {config.heads} is no multiple of "
            f"num_key_value_heads = {config.kv_heads}"
        )
    if config.head_dim % 2:
        raise ConfigError(f"config.json: head_dim = {config.head_dim} is odd: no rotary pairs")


def _rope_theta(config: dict[str, Any]) -> float:
    """transformers 5 writes `rope_parameters`; older ones `rope_theta` and `rope_scaling`."""
    for key in ("rope_parameters", "rope_scaling"):
        rope = config.get(key) or {}
        if not isinstance(rope, dict):
            raise ConfigError(f"config.json: {key} is not an object")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise ConfigError(f"config.json: {key} of type {kind!r} is not supported, only default")
        if rope.get("partial_rotary_factor", 1) != 1:
            raise ConfigError(f"config.json: {key}: partial_rotary_factor is not supported")
    parameters = config.get("rope_parameters") or {}
    where = parameters if "rope_theta" in parameters else config
    return _positive(where, "rope_theta", default=10_000.0)


def _end_ids(config: dict[str, Any], generation: dict[str, Any]) -> frozenset[int]:
    """generation_config.json has the last word: chat models list their end of turn there."""
    value = generation.get("eos_token_id", config.get("eos_token_id"))
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(id) is int and id >= 0 for id in ids):
        raise ConfigError(f"eos_token_id = {value!r} is neither an id nor a list of ids")
    return frozenset(ids)


def _count(
    config: dict[str, Any], key: str, *, default: int | None = None, most: int = _MOST
) -> int:
    value = config.get(key)
    value = default if value is None else value
    if type(value) is not int or not 1 <= value <= most:
        raise ConfigError(f"config.json: {key} = {value!r} is not an integer of 1..{most}")
    return value


def _positive(config: dict[str, Any], key: str, *, default: float) -> float:
    value = config.get(key, default)
    if type(value) not in (int, float) or not 0 < value < 1e12:
        raise ConfigError(f"config.json: {key} = {value!r} is not a positive number")
    return float(value)
