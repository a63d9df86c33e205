"""What this machine computes on, in which precision, with how much memory."""

from pathlib import Path

import torch

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# Without one of these (x86) or `bf16` (ARM) a CPU emulates bf16, slower than fp32. torch's own
# `mkldnn` check is true on any AVX-512 machine, so the flags are read.
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})

_MIB = 1 << 20


def pick_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pick_precision(device: torch.device) -> str:
    """The fastest that the hardware itself has."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if _BF16_FLAGS & _cpu_flags() else "fp32"


def device_uuid(device: torch.device) -> str | None:
    """As NVML spells it; None for a CPU."""
    if device.type != "cuda":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def default_arena_bytes(device: torch.device, context_bytes: int, host_free_bytes: int) -> int:
    """Room for four full contexts, at least 256 MiB, at most a quarter of what is free."""
    on_gpu = device.type == "cuda"
    free_bytes = torch.cuda.mem_get_info(device)[0] if on_gpu else host_free_bytes
    return min(free_bytes // 4, max(256 * _MIB, 4 * context_bytes))


def _cpu_flags() -> frozenset[str]:
    """Empty where the kernel does not tell (it does on Linux)."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return frozenset()
    lines = path.read_text(encoding="utf-8").splitlines()
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(flags, "").split())
