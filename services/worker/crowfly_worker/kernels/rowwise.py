"""What acts on each row alone: RMS normalisation and the gated activation."""

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, the mean over the last axis in fp32.

    x [rows, hidden], weight [hidden] -> [rows, hidden], in x's type. arXiv 1910.07467, eq. 4.
    """
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up.

    gate_up [rows, 2 * intermediate], the gate first -> [rows, intermediate]. arXiv 2002.05202.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.mul(functional.silu(gate), up)
