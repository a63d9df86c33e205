"""GPUs through the real pynvml and a mock library, one process per scenario."""

from typing import TYPE_CHECKING

import psutil
import pytest

from crowfly.v1 import topology_pb2

if TYPE_CHECKING:
    from tests.topology.conftest import Eventually, MockNvml, Observe

GIB = 1 << 30
GPU_IS_LOST = 15
LIB_RM_VERSION_MISMATCH = 18


def test_gpus_appear_with_their_exact_memory(
    nvml: "MockNvml", observe: "Observe", eventually: "Eventually"
) -> None:
    observer = observe(nvml.environ)
    expected = {"GPU-0": (80 * GIB, 69 * GIB), "GPU-1": (80 * GIB, 59 * GIB)}
    eventually(  # 80 less 1 that is reserved, less 10 and 20 in use
        lambda: (
            expected
            == {
                uuid: (device.memory.total_bytes, device.memory.free_bytes)
                for uuid, device in observer.devices().items()
            }
        )
    )
    first, second = observer.record().devices
    assert (first.uuid, second.uuid) == ("GPU-0", "GPU-1")
    assert first.kind == second.kind == topology_pb2.DEVICE_KIND_CUDA
    assert first.name == second.name == "NVIDIA H100 80GB HBM3"


def test_a_change_of_free_memory_reaches_the_record(
    nvml: "MockNvml", observe: "Observe", eventually: "Eventually"
) -> None:
    observer = observe(nvml.environ)
    eventually(lambda: observer.free_bytes("GPU-0") == 69 * GIB)
    nvml.state.gpus[0].used_bytes = 30 * GIB + 1
    eventually(lambda: observer.free_bytes("GPU-0") == 49 * GIB - 1)
    eventually(lambda: observer.free_bytes("GPU-1") == 59 * GIB)


def test_a_lost_gpu_keeps_its_place_and_comes_back(
    nvml: "MockNvml", observe: "Observe", eventually: "Eventually"
) -> None:
    observer = observe(nvml.environ)
    eventually(lambda: observer.free_bytes("GPU-0") == 69 * GIB)
    nvml.state.gpus[0].error = GPU_IS_LOST
    eventually(lambda: observer.free_bytes("GPU-0") is None)
    devices = observer.devices()
    assert list(devices) == ["GPU-0", "GPU-1"]
    assert devices["GPU-0"].memory_unknown_reason == "NVML: GPU is lost"
    nvml.state.gpus[1].used_bytes = 21 * GIB
    eventually(lambda: observer.free_bytes("GPU-1") == 58 * GIB)
    assert observer.free_bytes("GPU-0") is None

    nvml.state.gpus[0].error = 0
    eventually(lambda: observer.free_bytes("GPU-0") == 69 * GIB)
    assert observer.devices()["GPU-0"].memory_unknown_reason == ""


def test_a_lost_gpu_is_found_again_by_its_uuid_at_another_index(
    nvml: "MockNvml", observe: "Observe", eventually: "Eventually"
) -> None:
    observer = observe(nvml.environ)
    eventually(lambda: observer.free_bytes("GPU-0") == 69 * GIB)
    nvml.state.gpus[0].error = nvml.state.gpus[1].error = GPU_IS_LOST
    eventually(lambda: observer.free_bytes("GPU-0") is None)
    eventually(lambda: observer.free_bytes("GPU-1") is None)
    for gpu, uuid in zip(nvml.state.gpus, (b"GPU-1", b"GPU-0"), strict=False):
        gpu.uuid, gpu.error = uuid, 0
    eventually(lambda: observer.free_bytes("GPU-0") == 59 * GIB)
    eventually(lambda: observer.free_bytes("GPU-1") == 69 * GIB)


def test_a_hung_gpu_delays_no_other_and_turns_unknown(
    nvml: "MockNvml", observe: "Observe", eventually: "Eventually"
) -> None:
    observer = observe(nvml.environ)
    eventually(lambda: observer.free_bytes("GPU-1") == 59 * GIB)
    nvml.state.gpus[1].hangs = 1
    eventually(lambda: observer.free_bytes("GPU-1") is None)
    assert observer.devices()["GPU-1"].memory_unknown_reason == "no answer for over 500 ms"
    nvml.state.gpus[0].used_bytes = 11 * GIB
    eventually(lambda: observer.free_bytes("GPU-0") == 68 * GIB)

    nvml.state.gpus[1].hangs = 0
    eventually(lambda: observer.free_bytes("GPU-1") == 59 * GIB)


def test_a_hung_gpu_does_not_keep_the_process_alive(
    nvml: "MockNvml", observe: "Observe", eventually: "Eventually"
) -> None:
    observer = observe(nvml.environ)
    eventually(lambda: observer.free_bytes("GPU-1") == 59 * GIB)
    nvml.state.gpus[1].hangs = 1
    eventually(lambda: observer.free_bytes("GPU-1") is None)
    assert observer.stop() == 0
    assert nvml.state.shutdowns == 0  # not under a call that is still running


def test_the_library_is_shut_down_at_the_end(
    nvml: "MockNvml", observe: "Observe", eventually: "Eventually"
) -> None:
    observer = observe(nvml.environ)
    eventually(lambda: observer.free_bytes("GPU-1") == 59 * GIB)
    assert observer.stop() == 0
    assert (nvml.state.inits, nvml.state.shutdowns) == (1, 1)


def test_handles_are_looked_up_once(
    nvml: "MockNvml", observe: "Observe", eventually: "Eventually"
) -> None:
    observe(nvml.environ)
    eventually(lambda: all(nvml.state.gpus[place].memory_reads >= 10 for place in (0, 1)))
    assert [nvml.state.gpus[place].lookups for place in (0, 1)] == [1, 1]


def test_without_a_library_the_node_is_one_cpu(
    no_nvml: dict[str, str], observe: "Observe", eventually: "Eventually"
) -> None:
    observer = observe(no_nvml)
    machine_bytes = psutil.virtual_memory().total
    eventually(lambda: 0 < (observer.free_bytes("CPU-node") or 0) <= machine_bytes)
    (cpu,) = observer.record().devices
    assert cpu.kind == topology_pb2.DEVICE_KIND_CPU
    assert cpu.name
    assert cpu.memory.free_bytes <= cpu.memory.total_bytes <= machine_bytes
    assert "no NVML library" in observer.log()


@pytest.mark.parametrize("gpu_count", [0, 2])
def test_when_nvml_shows_no_gpu_the_node_is_one_cpu_and_the_log_says_why(
    nvml: "MockNvml", observe: "Observe", gpu_count: int
) -> None:
    nvml.state.gpu_count = gpu_count
    nvml.state.init_error = LIB_RM_VERSION_MISMATCH if gpu_count else 0
    observer = observe(nvml.environ)
    (cpu,) = observer.record().devices
    assert cpu.uuid == "CPU-node"
    reason = "RM has detected an NVML/RM version mismatch" if gpu_count else "NVML shows no GPU"
    assert reason in observer.log()


def test_a_gpu_that_is_lost_at_the_start_is_left_out_and_the_log_says_why(
    nvml: "MockNvml", observe: "Observe"
) -> None:
    nvml.state.gpus[0].error = GPU_IS_LOST
    observer = observe(nvml.environ)
    assert list(observer.devices()) == ["GPU-1"]
    assert "GPU 0 has no name to be known by and is left out: GPU is lost" in observer.log()
