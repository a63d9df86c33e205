"""How fast this engine is: measured at start, corrected by every step. Pure arithmetic."""

from dataclasses import dataclass, replace

# How much one step moves a rate: about the last 20 steps count.
_WEIGHT = 0.05
# One step is believed within this factor of the prediction: a step that was preempted or swapped
# says nothing about the next.
_OUTLIER = 4.0
# Fewer prompt rows than this are bound by reading the weights, not by their number.
_PREFILL_ROWS = 64


@dataclass(frozen=True, slots=True)
class Rates:
    """A step takes step_base_ms + decode rows * step_per_sequence_ms, and the prompt rows' time."""

    prefill_tokens_per_s: float
    step_base_ms: float
    step_per_sequence_ms: float

    def decode_ms(self, rows: int) -> float:
        return self.step_base_ms + rows * self.step_per_sequence_ms

    def corrected(self, decode_rows: int, prefill_rows: int, took_ms: float) -> "Rates":
        """The rates after one more step with these rows."""
        if prefill_rows == 0:
            return self._decode_corrected(took_ms / self.decode_ms(decode_rows))
        if prefill_rows < _PREFILL_ROWS:
            return self
        decode_ms = self.decode_ms(decode_rows) if decode_rows else 0.0
        predicted_ms = prefill_rows / self.prefill_tokens_per_s * 1000
        return self._prefill_corrected((took_ms - decode_ms) / predicted_ms)

    def _decode_corrected(self, ratio: float) -> "Rates":
        factor = _smoothed(ratio)
        return replace(
            self,
            step_base_ms=self.step_base_ms * factor,
            step_per_sequence_ms=self.step_per_sequence_ms * factor,
        )

    def _prefill_corrected(self, ratio: float) -> "Rates":
        return replace(self, prefill_tokens_per_s=self.prefill_tokens_per_s / _smoothed(ratio))


def _smoothed(ratio: float) -> float:
    """The factor by which a time is corrected after one step took `ratio` times as long."""
    believed = min(max(ratio, 1 / _OUTLIER), _OUTLIER)
    return 1 + _WEIGHT * (believed - 1)
