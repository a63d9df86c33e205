"""The decision, as a library: values in, a choice out. No IO, clock, randomness or logging."""
