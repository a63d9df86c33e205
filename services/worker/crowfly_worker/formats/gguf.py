"""A GGUF file of the Llama family, read as its Hugging Face counterpart."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from torch import Tensor

from crowfly_worker.formats.errors import GgufError
from crowfly_worker.formats.layout import EMBEDDING, HEAD, NORM, in_layer

# What the gguf package raises on a file that is cut short or lies: it checks little itself.
BROKEN = (ValueError, IndexError, KeyError, TypeError, OverflowError, NotImplementedError)

_OUTER = {"token_embd": EMBEDDING, "output_norm": NORM, "output": HEAD}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Gguf:
    """Raises `GgufError` if the file is none, is cut short, or is no Llama."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = GGUFReader(path)
            self._values = {key: field.contents() for key, field in self._reader.fields.items()}
        except OSError as error:
            raise GgufError(f"{path} cannot be read: {error}") from error
        except BROKEN as error:
            raise GgufError(f"{path} is not a whole GGUF file: {error}") from error
        if self.value("general.architecture") != "llama":
            raise GgufError(
                f"{path}: architecture {self.value('general.architecture')!r} is not supported, "
                "only 'llama'"
            )
        if self._values.get("llama.rope.scaling.type", "none") != "none":
            raise GgufError(f"{path}: llama.rope.scaling.type is not supported")

    def value(self, key: str) -> Any:
        """Raises `GgufError` if the file does not say."""
        if key not in self._values:
            raise GgufError(f"{self.path} has no {key}")
        return self._values[key]

    def get(self, key: str) -> Any | None:
        return self._values.get(key)

    def config(self) -> dict[str, object]:
        """config.json for the folder."""
        heads, hidden = (
            self.value("llama.attention.head_count"),
            self.value("llama.embedding_length"),
        )
        names = {tensor.name for tensor in self._reader.tensors}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(self.value("tokenizer.ggml.tokens")),
            "hidden_size": hidden,
            "intermediate_size": self.value("llama.feed_forward_length"),
            "num_hidden_layers": self.value("llama.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._values.get("llama.attention.head_count_kv", heads),
            "head_dim": self._values.get("llama.rope.dimension_count", hidden // heads),
            "max_position_embeddings": self.value("llama.context_length"),
            "rms_norm_eps": self.value("llama.attention.layer_norm_rms_epsilon"),
            "rope_theta": self._values.get("llama.rope.freq_base", 10_000.0),
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": "output.weight" not in names,
            "torch_dtype": "bfloat16",
            **self.special_ids(),
        }

    def special_ids(self) -> dict[str, int]:
        """The ids that config.json and generation_config.json name, where the file has them."""
        keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
        ids = {name: self.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
        return {name: id for name, id in ids.items() if id is not None}

    def tensor_count(self) -> int:
        return len(self._reader.tensors)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Each tensor under its Hugging Face name, in bf16. Raises `GgufError`."""
        for entry in self._reader.tensors:
            name, kind = self._name(entry.name)
            try:
                values = dequantize(entry.data, entry.tensor_type)
                tensor = torch.from_numpy(np.array(values, dtype=np.float32))
                heads = self._rotary_heads(kind)
                yield name, (unpermuted(tensor, heads) if heads else tensor).bfloat16()
            except (*BROKEN, RuntimeError) as error:
                raise GgufError(f"{self.path}: tensor {entry.name}: {error}") from error

    def _name(self, name: str) -> tuple[str, str]:
        """(Hugging Face name, kind), as in `blk.<layer>.<kind>.weight`."""
        match name.split("."):
            case [kind, "weight"] if kind in _OUTER:
                return _OUTER[kind], kind
            case ["blk", layer, kind, "weight"] if kind in _INNER and layer.isdecimal():
                return in_layer(int(layer), _INNER[kind]), kind
        raise GgufError(f"{self.path}: tensor {name} is not part of a plain Llama")

    def _rotary_heads(self, kind: str) -> int | None:
        heads = self.value("llama.attention.head_count")
        kv_heads = self._values.get("llama.attention.head_count_kv", heads)
        return {"attn_q": int(heads), "attn_k": int(kv_heads)}.get(kind)


def unpermuted(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head from llama.cpp's order of rotary pairs, (x0, x1), (x2, x3), ..., to Hugging
    Face's, pair i being rows i and i + head_dim / 2.

    weight [heads * head_dim, hidden] -> the same shape.
    """
    rows, hidden = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, hidden)
    return pairs.swapaxes(1, 2).reshape(rows, hidden)
