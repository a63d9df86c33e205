"""Rotary position embedding, in Hugging Face's layout: pair i is (x[i], x[i + head_dim / 2])."""

import torch
from torch import Tensor


def rope_table(theta: float, head_dim: int, positions: int, device: torch.device) -> Tensor:
    """cos and sin of position * theta^(-2i / head_dim): fp32 [2, positions, head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), 1.0 / theta**exponents)
    return torch.stack((angles.cos(), angles.sin())).to(device)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(a, b) -> (a cos - b sin, b cos + a sin) for each pair, in fp32. arXiv 2104.09864, eq. 34.

    x [rows, heads, head_dim]; cos, sin [rows, head_dim / 2] -> like x.
    """
    a, b = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)
