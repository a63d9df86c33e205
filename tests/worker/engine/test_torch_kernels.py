"""Attention over pages against the formula written out, on awkward shapes."""

import math

import pytest
import torch
from torch import Tensor

from crowfly_worker.kernels.attention import Span, attend, write_kv
from crowfly_worker.kernels.rope import rope, rope_table
from crowfly_worker.kernels.rowwise import rms_norm, swiglu

PAGE_TOKENS, HEAD_DIM = 4, 6


def reference(queries: Tensor, keys: Tensor, values: Tensor, position: int) -> Tensor:
    """One row and head at a time."""
    group = queries.shape[1] // keys.shape[1]
    out = torch.empty_like(queries)
    for row, rows_heads in enumerate(queries):
        seen = position + row + 1
        for head, query in enumerate(rows_heads):
            scores = keys[:seen, head // group] @ query / math.sqrt(HEAD_DIM)
            out[row, head] = scores.softmax(0) @ values[:seen, head // group]
    return out


@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (4, 4), (5, 1)])
@pytest.mark.parametrize("pages", [[2, 3, 4, 5], [6, 1, 4, 0]], ids=["run", "scattered"])
@pytest.mark.parametrize(("position", "rows"), [(0, 1), (0, 13), (3, 1), (5, 7), (15, 1), (12, 4)])
def test_attention_is_its_formula(
    heads: int, kv_heads: int, pages: list[int], position: int, rows: int
) -> None:
    torch.manual_seed(rows)
    length = position + rows
    keys, values = torch.randn(2, length, kv_heads, HEAD_DIM)
    cache = torch.full((2, 7, PAGE_TOKENS, kv_heads, HEAD_DIM), torch.nan)  # nothing else is read
    slots = torch.tensor([pages[at // 4] * 4 + at % 4 for at in range(length)])
    write_kv(cache, slots, keys, values)
    queries = torch.randn(rows, heads, HEAD_DIM)
    used = pages[: math.ceil(length / PAGE_TOKENS)]
    where = slice(used[0], used[-1] + 1) if pages[0] == 2 else torch.tensor(used)
    out = attend(queries, cache, [Span(slice(0, rows), position, where)])
    assert torch.allclose(out, reference(queries, keys, values, position), atol=1e-6)


def test_rows_of_one_sequence_never_see_another() -> None:
    torch.manual_seed(0)
    cache = torch.randn(2, 4, PAGE_TOKENS, 2, HEAD_DIM)
    queries = torch.randn(5, 4, HEAD_DIM)
    first, second = Span(slice(0, 3), 0, slice(1, 2)), Span(slice(3, 5), 2, slice(3, 4))
    together = attend(queries, cache, [first, second])
    alone = attend(queries[3:], cache, [Span(slice(0, 2), 2, slice(3, 4))])
    assert torch.equal(together[3:], alone)


def test_rope_turns_each_pair_by_its_angle() -> None:
    cos, sin = rope_table(100.0, 4, 8, torch.device("cpu"))
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    angles = [7 * 1.0, 7 * 0.1]  # 100^(-0/4) and 100^(-2/4), at position 7
    expected = [
        1 * math.cos(angles[0]) - 3 * math.sin(angles[0]),
        2 * math.cos(angles[1]) - 4 * math.sin(angles[1]),
        3 * math.cos(angles[0]) + 1 * math.sin(angles[0]),
        4 * math.cos(angles[1]) + 2 * math.sin(angles[1]),
    ]
    assert rope(x, cos[7:], sin[7:])[0, 0].tolist() == pytest.approx(expected, abs=1e-6)


def test_rms_norm_is_its_formula() -> None:
    x, weight = torch.tensor([[3.0, -4.0]]), torch.tensor([2.0, 10.0])
    scale = 1 / math.sqrt(12.5 + 0.5)
    expected = [6 * scale, -40 * scale]
    assert rms_norm(x, weight, 0.5)[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_swiglu_takes_the_gate_from_the_first_half() -> None:
    gate_up = torch.tensor([[1.0, -2.0, 5.0, 7.0]])
    expected = [5 / (1 + math.exp(-1)), 7 * -2 / (1 + math.exp(2))]
    assert swiglu(gate_up)[0].tolist() == pytest.approx(expected, abs=1e-6)
