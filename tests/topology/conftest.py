"""A mock NVML, the agent's sampler in a process of its own, and conditions with a deadline."""

import ctypes
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

import pytest
from google.protobuf.json_format import Parse

from crowfly.v1 import topology_pb2

HERE = Path(__file__).parent
GIB = 1 << 30
WAIT_SECONDS = 20.0  # how long a condition may take on a loaded machine


class Eventually(Protocol):
    def __call__(self, condition: Callable[[], bool]) -> None: ...


@pytest.fixture
def eventually() -> Eventually:
    """Waits until the condition holds; fails after `WAIT_SECONDS`."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.02)

    return wait


class MockGpu(ctypes.Structure):
    """`struct gpu` of nvml/mock.c."""

    uuid: bytes
    name: bytes
    total_bytes: int
    reserved_bytes: int
    used_bytes: int
    error: int
    hangs: int
    lookups: int
    memory_reads: int
    _fields_ = (
        ("uuid", ctypes.c_char * 80),
        ("name", ctypes.c_char * 80),
        ("total_bytes", ctypes.c_uint64),
        ("reserved_bytes", ctypes.c_uint64),
        ("used_bytes", ctypes.c_uint64),
        ("error", ctypes.c_int32),
        ("hangs", ctypes.c_uint32),
        ("lookups", ctypes.c_uint64),
        ("memory_reads", ctypes.c_uint64),
    )


class MockState(ctypes.Structure):
    """`struct state` of nvml/mock.c."""

    gpu_count: int
    init_error: int
    inits: int
    shutdowns: int
    gpus: "ctypes.Array[MockGpu]"
    _fields_ = (
        ("gpu_count", ctypes.c_uint32),
        ("init_error", ctypes.c_int32),
        ("inits", ctypes.c_uint64),
        ("shutdowns", ctypes.c_uint64),
        ("gpus", MockGpu * 8),
    )


class MockNvml:
    """Two GPUs of 80 GiB, 1 GiB of it reserved by the driver; 10 and 20 GiB in use."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._path = folder / "nvml-state"
        self._library = library
        self._path.write_bytes(bytes(ctypes.sizeof(MockState)))
        with self._path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self.state = MockState.from_buffer(self._memory)
        self.state.gpu_count = 2
        for place, used in enumerate((10 * GIB, 20 * GIB)):
            gpu = self.state.gpus[place]
            gpu.uuid, gpu.name = f"GPU-{place}".encode(), b"NVIDIA H100 80GB HBM3"
            gpu.total_bytes, gpu.reserved_bytes, gpu.used_bytes = 80 * GIB, GIB, used

    @property
    def environ(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self._library.parent), "NVML_MOCK_STATE": str(self._path)}


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """nvml/mock.c, compiled."""
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    options = ["-O2", "-Wall", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    command = ["gcc", *options, "-o", str(library), str(HERE / "nvml" / "mock.c")]
    subprocess.run(command, check=True)
    return library


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> MockNvml:
    return MockNvml(nvml_library, tmp_path)


@pytest.fixture
def no_nvml(tmp_path: Path) -> dict[str, str]:
    """An environment whose NVML library cannot be loaded, also on a machine that has one."""
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    return {"LD_LIBRARY_PATH": str(tmp_path)}


class Observer:
    """nvml/observe.py, running."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process = process
        self._log = log

    def record(self) -> topology_pb2.NodeRecord:
        """What the agent would publish now."""
        stdin, stdout = self._pipes()
        stdin.write("\n")
        stdin.flush()
        return Parse(stdout.readline(), topology_pb2.NodeRecord())

    def devices(self) -> dict[str, topology_pb2.Device]:
        return {device.uuid: device for device in self.record().devices}

    def free_bytes(self, uuid: str) -> int | None:
        device = self.devices()[uuid]
        return device.memory.free_bytes if device.HasField("memory") else None

    def stop(self) -> int:
        """End it; the exit code."""
        stdin, stdout = self._pipes()
        stdin.close()
        code = self._process.wait(WAIT_SECONDS)
        stdout.close()
        return code

    def log(self) -> str:
        return self._log.read_text()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin
        assert self._process.stdout
        return self._process.stdin, self._process.stdout


Observe = Callable[[dict[str, str]], Observer]


@pytest.fixture
def observe(tmp_path: Path) -> Iterator[Observe]:
    """Starts an `Observer` in the given environment."""
    processes = []

    def start(environ: dict[str, str]) -> Observer:
        log = tmp_path / "observer.log"
        with log.open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "nvml" / "observe.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env=os.environ | environ,
            )
        processes.append(process)
        return Observer(process, log)

    yield start
    for process in processes:
        with process:  # closes the pipes, then waits
            process.kill()
