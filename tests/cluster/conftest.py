"""Whole clusters of real processes, not yet started: `async with cluster`."""

from pathlib import Path

import pytest

from crowfly.cli.cluster import LocalCluster


def _cluster(folder: Path, model: Path, workers: int) -> LocalCluster:
    return LocalCluster(
        folder=folder, model=str(model), workers=workers, precision="fp32", listen="127.0.0.1:0"
    )


@pytest.fixture
def cluster(tmp_path: Path, byte_model: Path) -> LocalCluster:
    """etcd, agent, dispatcher and two workers with the byte model in fp32."""
    return _cluster(tmp_path, byte_model, workers=2)


@pytest.fixture
def one_worker(tmp_path: Path, byte_model: Path) -> LocalCluster:
    """The same with a single worker."""
    return _cluster(tmp_path, byte_model, workers=1)


@pytest.fixture
def one_real_worker(tmp_path: Path, smollm2: Path) -> LocalCluster:
    """The same with the real small model, whose steps take tens of milliseconds."""
    return _cluster(tmp_path, smollm2, workers=1)


@pytest.fixture
def real_cluster(tmp_path: Path, smollm2: Path) -> LocalCluster:
    """Two workers with the real small model: streams long enough to be interrupted."""
    return _cluster(tmp_path, smollm2, workers=2)
