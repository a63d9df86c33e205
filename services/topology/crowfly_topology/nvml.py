"""The GPUs of this node through NVML; the only file that knows pynvml.

GPUs are keyed by UUID: an index moves when a GPU before it falls off the bus.
"""

import logging
import threading
import time

import pynvml

from crowfly_topology.sample import Identity, Kind, Memory, Unknown

log = logging.getLogger(__name__)

# NVML calls queue on one lock in the driver, and a look-up holds it for about 6 ms: a GPU that
# failed is asked again once a second, not at every tick.
RETRY_SECONDS = 1.0
SHUTDOWN_SECONDS = 0.3  # nvmlShutdown takes milliseconds, or for ever when the driver hangs


class Gpu:
    """A `Device`. A GPU that does not answer stays, unknown with the reason, until it does."""

    def __init__(self, identity: Identity, handle: object) -> None:
        self.identity = identity
        self._handle: object | None = handle
        self._failure: Unknown | None = None
        self._retry_at = 0.0

    def read_memory(self) -> Memory | Unknown:
        if self._failure is not None and time.monotonic() < self._retry_at:
            return self._failure
        try:
            memory = self._ask()
        except pynvml.NVMLError as error:
            return self._failed(str(error))
        self._failure = None
        return memory

    def _ask(self) -> Memory:
        if self._handle is None:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(self.identity.uuid)
        # Version 2: the first counts what the driver reserved (0.4 to 1 GB) as used.
        info = pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2)
        return Memory(total_bytes=info.total, free_bytes=info.free)

    def _failed(self, reason: str) -> Unknown:
        self._handle = None  # a GPU that was reset answers to a new one only
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self._failure = Unknown(f"NVML: {reason}")
        return self._failure


class Nvml:
    """The library, initialised, and the GPUs that it showed then."""

    def __init__(self, gpus: tuple[Gpu, ...]) -> None:
        self.gpus = gpus

    def close(self) -> None:
        """Shut the library down; gives up after `SHUTDOWN_SECONDS`. Not while a GPU is read."""
        shutdown = threading.Thread(target=_shutdown, name="nvml-shutdown", daemon=True)
        shutdown.start()
        shutdown.join(SHUTDOWN_SECONDS)


def open_nvml() -> Nvml | None:
    """None, with the reason in the log: no library, no driver, or no GPU that answers."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        log.info("no NVML library: no GPUs on this node")
        return None
    except pynvml.NVMLError as error:
        log.warning("NVML does not start, so no GPUs are seen: %s", error)
        return None
    nvml = Nvml(_find_gpus())
    if nvml.gpus:
        return nvml
    log.warning("NVML shows no GPU")
    nvml.close()
    return None


def _find_gpus() -> tuple[Gpu, ...]:
    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        log.warning("NVML does not count the GPUs: %s", error)
        return ()
    return tuple(gpu for gpu in map(_find_gpu, range(count)) if gpu is not None)


def _find_gpu(index: int) -> Gpu | None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
    except pynvml.NVMLError as error:
        log.warning("GPU %d has no name to be known by and is left out: %s", index, error)
        return None
    return Gpu(Identity(uuid, Kind.CUDA, name), handle)


def _shutdown() -> None:
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        log.warning("NVML does not shut down: %s", error)
