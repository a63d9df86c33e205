"""From a model folder to an engine that is ready to step."""

from pathlib import Path

import torch

from crowfly_worker.engine.arena import PageArena
from crowfly_worker.engine.calibrate import LEAST_PAGES, calibrate
from crowfly_worker.engine.device import (
    PRECISIONS,
    default_arena_bytes,
    device_uuid,
    pick_device,
    pick_precision,
)
from crowfly_worker.engine.engine import LlamaEngine
from crowfly_worker.engine.port import EngineFacts
from crowfly_worker.engine.runner import Runner
from crowfly_worker.formats.config import ModelConfig, read_config
from crowfly_worker.models.llama import Progress, load_llama

# Positions in a page: a sequence wastes half a page on average, and a gathered one copies pages.
PAGE_TOKENS = 16


def load_engine(
    folder: Path,
    *,
    host_free_bytes: int,
    precision: str | None = None,
    arena_bytes: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> LlamaEngine:
    """Load, allocate the arena, and calibrate: seconds for a small model.

    host_free_bytes: memory of the machine that this process may count on.
    precision: "fp32", "bf16" or "fp16"; None takes bf16 where the hardware has it, else fp32.
    arena_bytes: of the KV cache; None takes four full contexts, 256 MiB or more, but at most a
    quarter of the free memory. threads: of torch on a CPU; None leaves torch's own choice.
    progress is told (tensors done, tensors in all).

    Raises `FormatError` for what is wrong with the folder, `ValueError` for an unknown precision
    or an arena that cannot hold one full context.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    device = pick_device()
    precision = precision or pick_precision(device)
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is not one of {', '.join(PRECISIONS)}")
    config = read_config(folder)
    facts = _facts(config, precision, device, arena_bytes, host_free_bytes)
    network = load_llama(folder, config, PRECISIONS[precision], device, progress)
    runner = Runner(network, network.new_cache(facts.total_pages, PAGE_TOKENS))
    arena = PageArena(facts.total_pages)
    rates = calibrate(runner, arena, PAGE_TOKENS)
    return LlamaEngine(facts, runner, arena, config.end_ids, rates=rates)


def _facts(
    config: ModelConfig,
    precision: str,
    device: torch.device,
    arena_bytes: int | None,
    host_free_bytes: int,
) -> EngineFacts:
    page_bytes = PAGE_TOKENS * _token_bytes(config, PRECISIONS[precision])
    least_pages = max(-(-config.context_tokens // PAGE_TOKENS), LEAST_PAGES)
    if arena_bytes is None:
        arena_bytes = default_arena_bytes(device, least_pages * page_bytes, host_free_bytes)
    if arena_bytes < least_pages * page_bytes:
        raise ValueError(
            f"an arena of {arena_bytes} bytes cannot hold one full context of "
            f"{config.context_tokens} tokens in {precision}: it takes "
            f"{least_pages * page_bytes} bytes"
        )
    return EngineFacts(
        device_uuid=device_uuid(device),
        context_tokens=config.context_tokens,
        vocab_size=config.vocab_size,
        precision=precision,
        kernel="torch",
        page_tokens=PAGE_TOKENS,
        total_pages=arena_bytes // page_bytes,
        page_bytes=page_bytes,
    )


def _token_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """A key and a value in every layer."""
    return 2 * config.layers * config.kv_heads * config.head_dim * dtype.itemsize
