"""Many callers at once get what each would get alone."""

import asyncio
import random

import pytest

from crowfly import AutoTuneSession, Completion
from crowfly.cli.cluster import LocalCluster
from crowfly.client.options import Kernel, Profile
from crowfly.v1 import common_pb2

pytestmark = pytest.mark.cluster
READY_SECONDS = 30


def prompts(count: int) -> list[list[int]]:
    made = random.Random(11)
    return [[made.randrange(256) for _ in range(made.randint(1, 100))] for _ in range(count)]


async def all_at_once(session: AutoTuneSession, asked: list[list[int]]) -> list[Completion]:
    return await asyncio.gather(*(session.complete(p, max_tokens=64) for p in asked))


async def one_by_one(session: AutoTuneSession, asked: list[list[int]]) -> list[Completion]:
    return [await session.complete(p, max_tokens=64) for p in asked]


def test_32_streams_through_two_workers_equal_their_lone_runs(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        async with cluster, AutoTuneSession(cluster.address) as session:
            await session.wait_until_served(READY_SECONDS, workers=2)
            asked = prompts(32)
            crowd = await all_at_once(session, asked)
            alone = await one_by_one(session, asked)
            assert [c.token_ids for c in crowd] == [a.token_ids for a in alone]
            assert [c.text for c in crowd] == [a.text for a in alone]
            share = [c.usage.worker_id for c in crowd]
            assert min(share.count(worker) for worker in share) >= 4  # neither is left out
            assert len(set(share)) == 2

    asyncio.run(scenario())


def test_no_profile_or_kernel_hint_changes_a_text(one_worker: LocalCluster) -> None:
    profiles: list[Profile] = ["latency_optimized", "throughput_optimized", "memory_efficient"]
    hints: list[Kernel] = ["torch", "fused", "mega"]

    async def scenario() -> None:
        async with one_worker as cluster, AutoTuneSession(cluster.address) as plain:
            await plain.wait_until_served(READY_SECONDS)
            asked = prompts(4)
            expected = [c.token_ids for c in await one_by_one(plain, asked)]
            for profile in profiles:
                async with AutoTuneSession(cluster.address, tuning_profile=profile) as session:
                    for hint in hints:
                        for prompt, tokens in zip(asked, expected, strict=True):
                            answer = await session.complete(prompt, max_tokens=64, kernel_hint=hint)
                            assert answer.token_ids == tokens
                            assert answer.usage.kernel == common_pb2.KERNEL_RUNG_TORCH

    asyncio.run(scenario())
