"""The Llama network: names, shapes and packing of its tensors, and the forward pass."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from crowfly_worker.formats.config import ModelConfig
from crowfly_worker.formats.layout import EMBEDDING, HEAD, NORM, expected_tensors, in_layer
from crowfly_worker.formats.weights import Weights, open_weights
from crowfly_worker.kernels.attention import attend, write_kv
from crowfly_worker.kernels.rope import rope, rope_table
from crowfly_worker.kernels.rowwise import rms_norm, swiglu
from crowfly_worker.models.batch import Batch

Progress = Callable[[int, int], None]  # (tensors done, tensors in all)

# Field of `Layer` -> the tensors of the file that are stacked into it, in this order.
_PACKING: dict[str, tuple[str, ...]] = {
    "input_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "mlp_norm": ("post_attention_layernorm",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


@dataclass(frozen=True, slots=True)
class Layer:
    input_norm: Tensor  # [hidden]
    qkv: Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]
    out: Tensor  # [hidden, heads * head_dim]
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * intermediate, hidden]
    down: Tensor  # [hidden, intermediate]


class Llama:
    """A network whose tensors are on one device, in one type."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: Tensor,
        layers: list[Layer],
        norm: Tensor,
        head: Tensor,
    ) -> None:
        self.config = config
        self._embedding = embedding  # [vocab, hidden]
        self._layers = layers
        self._norm = norm  # [hidden]
        self._head = head  # [vocab, hidden]
        self._rope = rope_table(
            config.rope_theta, config.head_dim, config.context_tokens, embedding.device
        )

    @property
    def device(self) -> torch.device:
        return self._embedding.device

    def new_cache(self, pages: int, page_tokens: int) -> Tensor:
        """[layers, 2, pages, page_tokens, kv_heads, head_dim] of zeros, written once here, so that
        the memory is really there."""
        c = self.config
        shape = (c.layers, 2, pages, page_tokens, c.kv_heads, c.head_dim)
        return torch.empty(shape, dtype=self._embedding.dtype, device=self.device).fill_(0)

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: Tensor) -> Tensor:
        """fp32 logits [len(batch.logit_rows), vocab]. Writes the batch's keys and values into
        `cache`, which holds those of all earlier positions already."""
        cos, sin = self._rope[:, batch.positions]
        x = functional.embedding(batch.ids, self._embedding)
        for layer, layer_cache in zip(self._layers, cache, strict=True):
            x = x + self._attention(layer, x, batch, layer_cache, cos, sin)
            x = x + self._mlp(layer, x)
        x = rms_norm(x[batch.logit_rows], self._norm, self.config.rms_norm_eps)
        return functional.linear(x, self._head).float()

    def _attention(
        self, layer: Layer, x: Tensor, batch: Batch, cache: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        c = self.config
        normed = rms_norm(x, layer.input_norm, c.rms_norm_eps)
        qkv = functional.linear(normed, layer.qkv).view(len(x), -1, c.head_dim)
        rotated = rope(qkv[:, : -c.kv_heads], cos, sin)
        write_kv(cache, batch.slots, rotated[:, c.heads :], qkv[:, -c.kv_heads :])
        attended = attend(rotated[:, : c.heads], cache, batch.spans)
        return functional.linear(attended.flatten(1), layer.out)

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        normed = rms_norm(x, layer.mlp_norm, self.config.rms_norm_eps)
        return functional.linear(swiglu(functional.linear(normed, layer.gate_up)), layer.down)


def load_llama(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None = None,
) -> Llama:
    """Read the folder's weights, converted to `dtype` and packed. Raises `FormatError`."""
    expected = expected_tensors(config)
    with open_weights(folder, expected) as weights:
        load = _Loader(weights, dtype, device, progress, total=len(expected))
        embedding = load.stacked(EMBEDDING)
        head = embedding if config.tie_embeddings else load.stacked(HEAD)
        layers = [_load_layer(load, i) for i in range(config.layers)]
        return Llama(config, embedding, layers, load.stacked(NORM), head)


def _load_layer(load: "_Loader", layer: int) -> Layer:
    return Layer(
        **{
            field: load.stacked(*(in_layer(layer, part) for part in parts))
            for field, parts in _PACKING.items()
        }
    )


class _Loader:
    """Reads tensors in turn and counts them for the progress callback."""

    def __init__(
        self,
        weights: Weights,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress | None,
        total: int,
    ) -> None:
        self._weights = weights
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._done, self._total = 0, total

    def stacked(self, *names: str) -> Tensor:
        """Always a copy: a file cut short under a running worker must not take it down."""
        parts = [self._weights.tensor(name) for name in names]
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        out = torch.empty(shape, dtype=self._dtype, device=self._device)
        start = 0
        for part in parts:
            out[start : start + len(part)] = part
            start += len(part)
        self._done += len(names)
        if self._progress is not None:
            self._progress(self._done, self._total)
        return out
