"""Bad input is refused at the edge, by name and bound, and harms nobody else."""

import asyncio
from typing import Any

import pytest

from crowfly import AutoTuneSession, CrowflyError, InvalidRequest, ModelNotFound
from crowfly.cli.cluster import LocalCluster

pytestmark = pytest.mark.cluster
READY_SECONDS = 30
GOOD = [97, 98, 99]

CASES: list[tuple[dict[str, Any], Any, type[CrowflyError], str]] = [
    ({"model": "banana"}, GOOD, ModelNotFound, "banana"),
    ({"model": "../../etc/passwd"}, GOOD, ModelNotFound, "passwd"),
    ({"model": "모델"}, GOOD, ModelNotFound, "모델"),
    ({}, [], InvalidRequest, "prompt"),
    ({}, "", InvalidRequest, "prompt"),
    ({"max_tokens": 1}, [97] * 512, InvalidRequest, "512"),
    ({"max_tokens": 1}, [97] * 5000, InvalidRequest, "5001"),
    ({"max_tokens": 512}, [97], InvalidRequest, "max_tokens"),
    ({"max_tokens": 0}, GOOD, InvalidRequest, "max_tokens"),
    ({"max_tokens": -1}, GOOD, InvalidRequest, "max_tokens"),
    ({"max_tokens": 2**32}, GOOD, InvalidRequest, "max_tokens"),
    ({"max_tokens": 10**30}, GOOD, InvalidRequest, "max_tokens"),
    ({}, [1, 260], InvalidRequest, "0..259"),
    ({}, [-1], InvalidRequest, "0..259"),
    ({}, [2**40], InvalidRequest, "0..259"),
    ({}, [1.5], InvalidRequest, "0..259"),
    ({}, [True], InvalidRequest, "0..259"),
    ({"temperature": -0.1}, GOOD, InvalidRequest, "temperature"),
    ({"temperature": float("nan")}, GOOD, InvalidRequest, "temperature"),
    ({"temperature": float("inf")}, GOOD, InvalidRequest, "temperature"),
    ({"temperature": "warm"}, GOOD, InvalidRequest, "temperature"),
    ({"top_p": 0.0}, GOOD, InvalidRequest, "top_p"),
    ({"top_p": 1.1}, GOOD, InvalidRequest, "top_p"),
    ({"top_k": 261}, GOOD, InvalidRequest, "top_k"),
    ({"seed": -1}, GOOD, InvalidRequest, "seed"),
    ({"seed": 2**64}, GOOD, InvalidRequest, "seed"),
    ({"precision": "fp4"}, GOOD, InvalidRequest, "precision"),
    ({"kernel_hint": "banana"}, GOOD, InvalidRequest, "kernel_hint"),
    ({"request_id": "a\nb"}, GOOD, InvalidRequest, "request_id"),
    ({"request_id": "x" * 129}, GOOD, InvalidRequest, "request_id"),
]


def test_every_bad_request_names_its_fault_and_the_stream_beside_it_is_unharmed(
    one_worker: LocalCluster,
) -> None:
    async def scenario() -> None:
        async with (
            one_worker as cluster,
            AutoTuneSession(cluster.address) as session,
        ):
            await session.wait_until_served(READY_SECONDS)
            expected = await session.complete(GOOD, max_tokens=200)
            for options, prompt, kind, named in CASES:
                beside = asyncio.create_task(session.complete(GOOD, max_tokens=200))
                with pytest.raises(CrowflyError) as refused:
                    await session.complete(prompt, **options)
                assert type(refused.value) is kind, (options, refused.value)
                assert named in str(refused.value), (options, refused.value)
                assert (await beside).token_ids == expected.token_ids

    asyncio.run(scenario())


def test_the_context_is_used_to_its_last_position(one_worker: LocalCluster) -> None:
    async def scenario() -> None:
        async with (
            one_worker as cluster,
            AutoTuneSession(cluster.address) as session,
        ):
            await session.wait_until_served(READY_SECONDS)
            full = await session.complete([97] * 511, max_tokens=1)
            assert len(full.token_ids) == 1
            rest = await session.complete([97] * 500)
            assert len(rest.token_ids) <= 12
            longest = await session.complete([97], max_tokens=511)
            assert len(longest.token_ids) <= 511

    asyncio.run(scenario())
