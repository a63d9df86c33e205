"""A worker that the store no longer lists stays while it lives, but not for long."""

import pytest

from crowfly.v1.common_pb2 import KERNEL_RUNG_TORCH, PRECISION_FP32, Model
from crowfly.v1.worker_pb2 import WorkerRegistration
from crowfly_dispatcher.cluster import STAY_SECONDS, Cluster

REGISTRATION = WorkerRegistration(
    worker_id="w0",
    epoch="e0",
    address="w0:1",
    model=Model(name="m", context_tokens=64),
    precision=PRECISION_FP32,
    kernel=KERNEL_RUNG_TORCH,
    page_tokens=16,
    total_pages=4,
    page_bytes=1024,
)


@pytest.fixture
def cluster() -> Cluster:
    """With one connected worker."""
    cluster = Cluster([])
    cluster.joined(REGISTRATION)
    cluster.book.connected("w0", "e0")
    return cluster


def _ids(cluster: Cluster) -> list[str]:
    return [facts.id for facts in cluster.facts()]


def test_an_unlisted_worker_stays_for_as_long_as_its_lease_would_have(cluster: Cluster) -> None:
    cluster.unlisted("w0", 10.0)
    cluster.unlisted("w0", 11.0)  # told again: the time does not begin again
    cluster.drop_unlisted(9.9 + STAY_SECONDS)
    assert _ids(cluster) == ["w0"]
    cluster.drop_unlisted(10.0 + STAY_SECONDS)
    assert _ids(cluster) == []


def test_an_unlisted_worker_leaves_as_soon_as_its_control_stream_ends(cluster: Cluster) -> None:
    cluster.unlisted("w0", 10.0)
    cluster.book.lost("w0", "e0")
    cluster.drop_unlisted(10.0)
    assert _ids(cluster) == []


def test_an_unlisted_worker_without_a_control_stream_leaves_at_once(cluster: Cluster) -> None:
    cluster.book.lost("w0", "e0")
    cluster.unlisted("w0", 10.0)
    cluster.unlisted("nobody", 10.0)
    assert _ids(cluster) == []


def test_a_worker_that_is_listed_again_stays(cluster: Cluster) -> None:
    cluster.unlisted("w0", 10.0)
    cluster.joined(REGISTRATION)
    cluster.drop_unlisted(99.0)
    assert _ids(cluster) == ["w0"]
    cluster.unlisted("w0", 100.0)
    cluster.drop_unlisted(100.0)
    assert _ids(cluster) == ["w0"]
