"""`crowfly doctor` beside a running cluster says what serves."""

import asyncio
import re
import subprocess
import sys

import pytest

from crowfly import AutoTuneSession, Unavailable
from crowfly.cli.cluster import LocalCluster

pytestmark = pytest.mark.cluster
READY_SECONDS = 30


def doctor(cluster: LocalCluster) -> str:
    return subprocess.run(
        [sys.executable, "-m", "crowfly", "doctor", "--dispatcher", cluster.address],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def test_the_doctor_names_the_dispatcher_the_device_and_each_worker(cluster: LocalCluster) -> None:
    async def scenario() -> str:
        async with cluster, AutoTuneSession(cluster.address) as session:
            await session.wait_until_served(READY_SECONDS, workers=2)
            return await asyncio.to_thread(doctor, cluster)

    said = asyncio.run(scenario())
    assert f"serves at {cluster.address}\n" in said
    assert re.search(r"ok device +CPU-\S+ \(.+\) on \S+: [\d.]+ of [\d.]+ GiB free, \d+ ms", said)
    for name in ("worker-1", "worker-2"):
        worker = cluster.services[name].facts["worker_id"]
        line = rf"ok worker +{worker} on CPU-\S+: byte-model\d*, ready, 0 running, 0 held, 8192 of 8192"
        assert re.search(line, said), said


def test_a_model_that_left_is_not_asked_for_again(cluster: LocalCluster) -> None:
    """The session hears of models by itself: none is served once both workers are gone."""

    async def scenario() -> None:
        async with cluster, AutoTuneSession(cluster.address) as session:
            await session.wait_until_served(READY_SECONDS, workers=2)
            (served,) = await session.models()
            assert served.model.context_tokens == 512
            assert len(served.worker_addresses) == 2
            for name in ("worker-1", "worker-2"):
                cluster.services[name].process.terminate()
                await cluster.services[name].process.wait()
            async with asyncio.timeout(10):
                while True:
                    if not await session.models():
                        break
                    await asyncio.sleep(0.02)
            with pytest.raises(Unavailable, match="no model is served now"):
                await session.complete("abc")

    asyncio.run(scenario())
