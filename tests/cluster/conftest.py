"""Whole clusters of real processes: etcd, agent, workers, dispatcher."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from crowfly.cli.cluster import LocalCluster

StartCluster = Callable[..., AbstractAsyncContextManager[LocalCluster]]


@pytest.fixture
def start_cluster(tmp_path: Path, byte_model: Path) -> StartCluster:
    """`async with start_cluster(workers=2) as cluster`: fp32, the byte model unless told."""

    @asynccontextmanager
    async def start(model: Path = byte_model, workers: int = 2) -> AsyncIterator[LocalCluster]:
        cluster = LocalCluster(
            folder=tmp_path,
            model=str(model),
            workers=workers,
            precision="fp32",
            listen="127.0.0.1:0",
        )
        async with cluster:
            yield cluster

    return start
