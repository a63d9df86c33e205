"""From a folder to an engine: precision, memory, rates."""

import json
import shutil
from pathlib import Path

import psutil
import pytest
import torch

from crowfly_worker.engine.build import load_engine
from crowfly_worker.engine.device import pick_precision
from crowfly_worker.engine.port import SamplingParams
from crowfly_worker.engine.rates import Rates

MIB = 1 << 20
PAGE_BYTES = 16 * 2 * 4 * 2 * 32 * 4  # tokens * (key, value) * layers * heads * head_dim * fp32


def test_an_engine_starts_with_measured_rates_and_an_untouched_arena(byte_model: Path) -> None:
    engine = load_engine(
        byte_model, host_free_bytes=8 << 30, precision="fp32", arena_bytes=40 * PAGE_BYTES
    )
    facts, load = engine.facts, engine.load()
    assert (facts.total_pages, facts.page_bytes, facts.page_tokens) == (40, PAGE_BYTES, 16)
    assert (facts.context_tokens, facts.vocab_size) == (512, 260)
    assert (facts.precision, facts.kernel) == ("fp32", "torch")
    assert load.prefill_tokens_per_s is not None
    assert load.prefill_tokens_per_s > 0
    assert load.step_base_ms is not None
    assert load.step_base_ms > 0
    assert (load.free_pages, load.largest_free_run_pages) == (40, 40)
    assert (load.prefilled_tokens_total, load.generated_tokens_total) == (0, 0)
    engine.check()


def test_the_default_arena_is_there_from_the_start(byte_model: Path) -> None:
    before = psutil.Process().memory_info().rss
    engine = load_engine(byte_model, host_free_bytes=8 << 30, precision="fp32")
    assert engine.facts.total_pages * engine.facts.page_bytes == 256 * MIB
    assert psutil.Process().memory_info().rss - before > 250 * MIB


def test_an_arena_below_one_context_is_refused_with_the_number(byte_model: Path) -> None:
    needed = 32 * PAGE_BYTES
    with pytest.raises(ValueError, match=f"cannot hold one full context of 512.*{needed} bytes"):
        load_engine(byte_model, host_free_bytes=8 << 30, precision="fp32", arena_bytes=needed - 1)


def test_an_unknown_precision_is_refused(byte_model: Path) -> None:
    with pytest.raises(ValueError, match="'int3' is not one of fp32, bf16, fp16"):
        load_engine(byte_model, host_free_bytes=8 << 30, precision="int3")


def test_bf16_is_chosen_only_where_the_cpu_has_it() -> None:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    has = not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)
    assert pick_precision(torch.device("cpu")) == ("bf16" if has else "fp32")


def test_a_bf16_engine_answers(byte_model: Path) -> None:
    engine = load_engine(
        byte_model, host_free_bytes=8 << 30, precision="bf16", arena_bytes=40 * PAGE_BYTES
    )
    assert engine.facts.total_pages == 80
    engine.claim("a", 3, 4)
    engine.submit("a", [1, 2, 3], SamplingParams())
    while engine.load().running:
        engine.step()
    assert engine.load().generated_tokens_total == 4


def test_loading_reports_every_tensor(byte_model: Path) -> None:
    seen: list[tuple[int, int]] = []
    load_engine(
        byte_model,
        host_free_bytes=8 << 30,
        precision="fp32",
        arena_bytes=40 * PAGE_BYTES,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (39, 39)  # 4 layers of 9, the embedding, the norm, the head
    assert seen == sorted(seen)


def test_the_models_own_end_tokens_are_used(byte_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(byte_model, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(260))}))
    engine = load_engine(
        folder, host_free_bytes=8 << 30, precision="fp32", arena_bytes=40 * PAGE_BYTES
    )
    engine.claim("a", 1, 9)
    engine.submit("a", [1], SamplingParams())
    (event,) = engine.step()
    assert (event.tokens, str(event.finish)) == ((), "FinishReason.STOP")


RATES = Rates(prefill_tokens_per_s=1000.0, step_base_ms=10.0, step_per_sequence_ms=1.0)


def test_a_step_that_took_as_predicted_changes_no_rate() -> None:
    assert RATES.corrected(decode_rows=5, prefill_rows=0, took_ms=15.0) == RATES
    assert RATES.corrected(decode_rows=5, prefill_rows=100, took_ms=115.0) == RATES


def test_slower_steps_move_the_rates_and_one_outlier_moves_them_little() -> None:
    slower = RATES.corrected(decode_rows=5, prefill_rows=0, took_ms=30.0)
    assert (slower.step_base_ms, slower.step_per_sequence_ms) == pytest.approx((10.5, 1.05))
    outlier = RATES.corrected(decode_rows=5, prefill_rows=0, took_ms=60_000.0)
    assert outlier.step_base_ms == pytest.approx(11.5)
    prefill = RATES.corrected(decode_rows=0, prefill_rows=100, took_ms=200.0)
    assert prefill.prefill_tokens_per_s == pytest.approx(1000 / 1.05)


def test_the_rates_end_at_the_true_speed() -> None:
    rates = RATES
    for _ in range(300):
        rates = rates.corrected(decode_rows=10, prefill_rows=0, took_ms=50.0)
    assert rates.decode_ms(10) == pytest.approx(50.0, rel=0.01)


def test_a_short_chunk_says_nothing_about_the_prefill_rate() -> None:
    assert RATES.corrected(decode_rows=0, prefill_rows=10, took_ms=500.0) == RATES
