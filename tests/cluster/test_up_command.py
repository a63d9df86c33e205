"""`crowfly up` as a person runs it, and that nothing outlives it."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster
SERVING_SECONDS = 90
GONE_SECONDS = 10


def up(
    state: Path, model: Path, *arguments: str, listen: str = "127.0.0.1:0"
) -> subprocess.Popen[str]:
    """Its children can be told by the state folder in their environment."""
    return subprocess.Popen(
        [sys.executable, "-m", "crowfly", "up", "--model", str(model), *arguments],
        env={**os.environ, "XDG_STATE_HOME": str(state), "CROWFLY_LISTEN": listen},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def family(state: Path) -> list[str]:
    """Command lines of the processes that were started with this state folder."""
    marker = f"XDG_STATE_HOME={state}".encode()
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return [line for line in found if line]  # a zombie has none


def wait_until_alone(state: Path) -> None:
    deadline = time.monotonic() + GONE_SECONDS
    while left := family(state):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """What it printed on stderr up to the line that holds `word`."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if word in line:
            return "".join(lines)
    raise AssertionError(f"no {word!r} in: {''.join(lines)}")


@pytest.fixture
def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


def test_once_streams_an_answer_and_leaves_nothing(
    tmp_path: Path, byte_model: Path, shared_memory: set[str]
) -> None:
    with up(tmp_path, byte_model, "--once", "--raw", "--ask", "abc") as process:
        answer, notes = process.communicate(timeout=SERVING_SECONDS)
    assert process.returncode == 0, notes
    assert len(answer) > 1
    assert "first token" in notes
    wait_until_alone(tmp_path)
    assert list((tmp_path / "crowfly").glob("up-*")) == []
    assert set(os.listdir("/dev/shm")) <= shared_memory


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_all_of_it(tmp_path: Path, byte_model: Path, sign: signal.Signals) -> None:
    with up(tmp_path, byte_model) as process:
        read_until(process, "serving")
        assert len(family(tmp_path)) == 6  # up, etcd, topology, two workers, dispatcher
        process.send_signal(sign)
        process.communicate(timeout=GONE_SECONDS + 10)
    assert process.returncode == 128 + sign
    wait_until_alone(tmp_path)
    assert list((tmp_path / "crowfly").glob("up-*")) == []


def test_a_listen_address_is_the_dispatchers_alone(tmp_path: Path, byte_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        where = f"127.0.0.1:{probe.getsockname()[1]}"
    with up(tmp_path, byte_model, listen=where) as process:
        notes = read_until(process, "serving")
        process.terminate()
        process.communicate(timeout=GONE_SECONDS + 10)
    assert re.search(rf"^dispatcher +{re.escape(where)} ", notes, re.MULTILINE)
    assert f"--dispatcher {where}" in notes


def test_a_question_dies_with_the_parent(tmp_path: Path, byte_model: Path) -> None:
    with up(tmp_path, byte_model, "--raw", "--ask", "abc" * 40) as process:
        read_until(process, "> abc")
        process.kill()
        process.communicate(timeout=GONE_SECONDS)
    wait_until_alone(tmp_path)


def test_killing_the_parent_kills_the_children_and_the_next_run_cleans_up(
    tmp_path: Path, byte_model: Path
) -> None:
    with up(tmp_path, byte_model) as process:
        read_until(process, "serving")
        process.kill()
        process.communicate(timeout=GONE_SECONDS)
    wait_until_alone(tmp_path)
    with up(tmp_path, byte_model, "--once", "--raw", "--ask", "abc") as process:
        _, notes = process.communicate(timeout=SERVING_SECONDS)
    assert process.returncode == 0, notes
    assert list((tmp_path / "crowfly").glob("up-*")) == []


def test_a_broken_model_is_one_clear_error(tmp_path: Path, byte_model: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(byte_model, broken)
    os.truncate(broken / "model.safetensors", 100_000)
    with up(tmp_path, broken, "--once", "--ask", "abc") as process:
        answer, notes = process.communicate(timeout=SERVING_SECONDS)
    assert process.returncode == 1
    assert answer == ""
    assert "model.safetensors" in notes
    assert "Traceback" not in notes
    wait_until_alone(tmp_path)
