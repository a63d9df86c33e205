"""The devices of this node: its GPUs, else its CPU; read for as long as the agent lives."""

from collections.abc import Iterator
from contextlib import contextmanager

from crowfly_topology.cpu import Cpu
from crowfly_topology.nvml import open_nvml
from crowfly_topology.sampler import Sampler


@contextmanager
def sampling(node: str) -> Iterator[Sampler]:
    """A started sampler of the node's devices, all of it stopped afterwards within 0.6 s."""
    nvml = open_nvml()
    sampler = Sampler(nvml.gpus if nvml else [Cpu(node)])
    sampler.start()
    try:
        yield sampler
    finally:
        idle = sampler.stop()
        if nvml and idle:
            nvml.close()
