"""Children end with their parent, and a dead run's folder goes with the next run."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from crowfly.cli.scratch import scratch_folder
from crowfly.process import spawn, stop

PARENT = """
import asyncio, sys
from crowfly.process import spawn
async def main():
    child = await spawn(["sleep", "60"], log=open("/dev/null", "wb"))
    print(child.pid, flush=True)
    await child.wait()
asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_dies_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 5
    while alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_that_ignores_its_signal_is_killed() -> None:
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True)"

    async def scenario(log: IO[bytes]) -> int | None:
        child = await spawn(
            [sys.executable, "-c", f"{ignore}\nwhile True: signal.pause()"], log=log
        )
        assert child.stdout is not None
        assert await child.stdout.readline() == b"on\n"
        await stop(child, signal.SIGTERM, seconds=0.2)
        return child.returncode

    with Path(os.devnull).open("wb") as log:
        assert asyncio.run(scenario(log)) == -signal.SIGKILL


def test_a_live_runs_folder_stays_and_a_dead_ones_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    dead = tmp_path / "crowfly" / "up-dead"
    dead.mkdir(parents=True)
    (dead / "lock").touch()
    with scratch_folder() as one, scratch_folder() as other:
        assert not dead.exists()
        assert one.is_dir()
        assert other.is_dir()
        assert one != other
    assert not one.exists()
    assert not other.exists()
