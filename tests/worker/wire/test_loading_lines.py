"""What a worker says of itself at start."""

from dataclasses import replace
from typing import TYPE_CHECKING

from crowfly_worker.loading import describe

if TYPE_CHECKING:
    from tests.worker.wire.conftest import ScriptedEngine


def test_a_rate_that_was_not_measured_is_not_zero(
    scripted_engine: "type[ScriptedEngine]",
) -> None:
    load = replace(scripted_engine().load(), prefill_tokens_per_s=1234.5, step_base_ms=2.54)
    said = describe(scripted_engine.facts, load, threads=2)
    assert said.endswith("prefill 1234 tokens/s, step 2.5 ms + (not measured) per sequence")
    unknown = replace(load, prefill_tokens_per_s=None, step_base_ms=None, step_per_sequence_ms=0.0)
    said = describe(scripted_engine.facts, unknown, threads=2)
    assert said.endswith("prefill (not measured), step (not measured) + 0.0 ms per sequence")
