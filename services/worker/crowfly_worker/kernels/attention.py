"""Attention over the paged KV cache.

One layer's cache is [2, pages, page_tokens, kv_heads, head_dim]: keys, then values. A sequence
whose pages are one run is attended through a view of it; other pages are gathered into a copy
first.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one sequence in a packed batch."""

    rows: slice
    position: int  # of the first row in its sequence
    pages: slice | Tensor  # those that hold positions 0 to the last row's: a run, or int64 ids

    @property
    def length(self) -> int:
        """Positions that the last row attends to, itself included."""
        rows: int = self.rows.stop - self.rows.start
        return self.position + rows


def write_kv(cache: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
    """Put each row into its slot, page * page_tokens + offset.

    cache: one layer; slots int64 [rows]; keys, values [rows, kv_heads, head_dim].
    """
    for half, rows in zip(cache, (keys, values), strict=True):
        half.flatten(0, 1).index_copy_(0, slots, rows)


def attend(queries: Tensor, cache: Tensor, spans: Iterable[Span]) -> Tensor:
    """softmax(q k^T / sqrt(head_dim)) v; a row sees its own sequence up to its own position.

    queries [rows, heads, head_dim]; cache: one layer, the rows' own keys and values already in
    it -> like queries. Query head h reads the key and value head h // (heads / kv_heads).
    """
    out = torch.empty_like(queries)
    for span in spans:
        keys, values = (half[span.pages].flatten(0, 1)[: span.length] for half in cache)
        one = _decode if span.length == span.position + 1 else _prefill
        out[span.rows] = one(queries[span.rows], keys, values)
    return out


def _decode(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One row sees all, so the heads of a group become rows that share their keys: no mask."""
    grouped = queries.view(keys.shape[1], 1, -1, queries.shape[-1])
    keys, values = (half.transpose(0, 1)[:, None] for half in (keys, values))
    return scaled_dot_product_attention(grouped, keys, values).reshape_as(queries)


def _prefill(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """A group's keys are repeated by a stride of 0, so that nothing is copied."""
    (rows, heads, head_dim), (length, kv_heads, _) = queries.shape, keys.shape
    grouped = queries.view(rows, kv_heads, heads // kv_heads, head_dim).permute(1, 2, 0, 3)
    keys, values = (
        half.transpose(0, 1)[:, None].expand(-1, heads // kv_heads, -1, -1)
        for half in (keys, values)
    )
    first = rows == length
    mask = None if first else _causal(rows, length, queries.device)
    out = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, is_causal=first)
    return out.permute(2, 0, 1, 3).reshape_as(queries)


def _causal(rows: int, length: int, device: torch.device) -> Tensor:
    """True where row i, at position length - rows + i, may see: bool [rows, length]."""
    return torch.ones(rows, length, dtype=torch.bool, device=device).tril(length - rows)
