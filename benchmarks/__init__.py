"""One command each: `python -m benchmarks.NAME --json FILE`; `python -m benchmarks` runs all."""
