"""The arithmetic, as plain torch functions on any device: the rung `torch`, and the truth."""
