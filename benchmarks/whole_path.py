"""The whole path on this machine: real etcd, agent, two workers, dispatcher, and this caller.

`python -m benchmarks.whole_path --json FILE`: for 1, 8 and 32 streams at once, how long a place
takes, when the first token is in the caller's hands, and the tokens per second of all streams.
"""

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import spread, write
from crowfly import AutoTuneSession
from crowfly.cli.cluster import LocalCluster

PROMPT = "Once upon a time, in a small village near the sea, there lived a"
MAX_TOKENS = 64
CROWDS = (1, 8, 32)
ROUNDS = {1: 8, 8: 3, 32: 2}


@dataclass(frozen=True, slots=True)
class Timed:
    placed_ms: float
    first_token_ms: float
    tokens: int


async def one(session: AutoTuneSession) -> Timed:
    started = time.monotonic()
    async with await session.stream(PROMPT, max_tokens=MAX_TOKENS) as stream:
        first, tokens = None, 0
        async for delta in stream:
            first = first or time.monotonic()
            tokens += len(delta.token_ids)
    assert first is not None
    return Timed(stream.placed_ms, (first - started) * 1e3, tokens)


async def crowd(session: AutoTuneSession, size: int) -> tuple[list[Timed], float]:
    started = time.monotonic()
    timed = await asyncio.gather(*(one(session) for _ in range(size)))
    return timed, sum(t.tokens for t in timed) / (time.monotonic() - started)


async def measure(precision: str | None) -> dict[str, object]:
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalCluster(
            folder=Path(folder), model="smollm2", precision=precision, listen="127.0.0.1:0"
        )
        async with cluster, AutoTuneSession(cluster.address) as session:
            await session.wait_until_served(60, workers=2)
            await crowd(session, 8)  # fills caches and connects
            figures["precision"] = cluster.services["worker-1"].facts["precision"]
            for size in CROWDS:
                runs = [await crowd(session, size) for _ in range(ROUNDS[size])]
                timed = [t for run, _ in runs for t in run]
                figures[f"streams_{size}"] = {
                    "place_ms": spread([t.placed_ms for t in timed]),
                    "first_token_ms": spread([t.first_token_ms for t in timed]),
                    "tokens_per_s": spread([rate for _, rate in runs]),
                }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"])
    arguments = parser.parse_args()
    write(arguments.json, asyncio.run(measure(arguments.precision)))


if __name__ == "__main__":
    main()
