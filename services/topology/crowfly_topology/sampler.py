"""Reads every device each tick and keeps the newest reading of each.

One thread per device: with one loop for all, a GPU that hung for 1.8 s blinded the seven others
for as long. ctypes gives the GIL back during a call, so a hung one delays nobody.
"""

import threading
import time
from collections.abc import Sequence

from crowfly import wire
from crowfly_topology.sample import Device, Reading, Unknown
from crowfly_topology.ticks import Ticks

STOP_SECONDS = 0.3  # a healthy thread ends within a tick and a read; a hung one is left behind


class Sampler:
    """Owns the newest readings; `readings` may be called from any thread."""

    def __init__(self, devices: Sequence[Device]) -> None:
        now = time.monotonic()
        self._newest = {
            device.identity.uuid: Reading(device.identity, Unknown("not read yet"), now)
            for device in devices
        }
        self._stopping = threading.Event()
        # Spread over the period, so that the calls do not queue on the driver's lock. Daemons: a
        # thread that hangs in the driver must not keep the process alive.
        self._threads = [
            threading.Thread(
                target=self._read_for_ever,
                args=(device, now + wire.TICK_SECONDS * place / len(devices)),
                name=device.identity.uuid,
                daemon=True,
            )
            for place, device in enumerate(devices)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def readings(self) -> list[Reading]:
        """One for each device, always in the same order."""
        return list(self._newest.values())

    def stop(self) -> bool:
        """Ask all threads to end; False if one still hangs in a read after `STOP_SECONDS`."""
        self._stopping.set()
        deadline = time.monotonic() + STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _read_for_ever(self, device: Device, start: float) -> None:
        ticks = Ticks(start)
        while not self._stopping.is_set():
            now = time.monotonic()
            reading = Reading(device.identity, device.read_memory(), now)
            self._newest[device.identity.uuid] = reading
            now = time.monotonic()
            time.sleep(max(0.0, ticks.next(now) - now))
