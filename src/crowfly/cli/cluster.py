"""A whole cluster as child processes of this one: etcd, topology, workers, dispatcher."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from crowfly import wire
from crowfly.process import spawn, stop
from crowfly.store import StoreError, open_store
from crowfly.store.embedded import EmbeddedEtcd

_START_SECONDS = 15.0
_LOAD_SECONDS = 900.0  # a worker reads its weights first
_STOP_SECONDS = 5.0
_LOG_TAIL_BYTES = 2000


class StartError(Exception):
    """A service ended, or did not get ready; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Service:
    """A running child: what it announced, and how long that took."""

    name: str
    process: asyncio.subprocess.Process
    facts: Mapping[str, Any]  # JSON
    seconds: float
    log: Path

    @property
    def address(self) -> str:
        return str(self.facts["address"])


@dataclass
class LocalCluster:
    """Use it as `async with`: entering returns when every service serves, leaving when every
    process is gone. Raises `StartError`; then, too, nothing is left running."""

    folder: Path  # etcd's data and the logs
    model: str
    workers: int = 2
    precision: str | None = None
    listen: str = wire.DISPATCHER
    store: str | None = None  # None: an etcd of its own
    on_ready: Callable[[Service], None] = lambda service: None
    services: dict[str, Service] = field(default_factory=dict)
    etcd: EmbeddedEtcd | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _started: list[asyncio.subprocess.Process] = field(default_factory=list)

    @property
    def address(self) -> str:
        """The dispatcher's, where callers ask."""
        return self.services["dispatcher"].address

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stop()

    async def _start(self) -> None:
        if self.store is None:
            self.etcd = EmbeddedEtcd(self.folder / "etcd")
            self.store = await self._stack.enter_async_context(self.etcd)
        else:
            await _check_store(self.store)
        failure: BaseException | None = None
        try:
            await self._start_services()
        except* StartError as errors:
            failure = errors.exceptions[0]
        if failure is not None:  # raised in there, Python 3.11.2 would wrap it in a group again
            raise failure

    async def _start_services(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._service("topology", "crowfly_topology", {}))
            for number in range(1, self.workers + 1):
                name = f"worker-{number}"
                group.create_task(self._service(name, "crowfly_worker", self._worker()))
            listen = {"CROWFLY_LISTEN": self.listen}
            group.create_task(self._service("dispatcher", "crowfly_dispatcher", listen))

    def _worker(self) -> dict[str, str]:
        threads = max(1, len(os.sched_getaffinity(0)) // self.workers)
        environ = {"CROWFLY_MODEL": self.model, "CROWFLY_THREADS": str(threads)}
        return environ | ({"CROWFLY_PRECISION": self.precision} if self.precision else {})

    async def _service(self, name: str, module: str, environ: Mapping[str, str]) -> None:
        started = time.monotonic()
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            process = await spawn(
                [sys.executable, "-m", module],
                log=out,
                environ={**_inherited(), "CROWFLY_STORE": self.store or "", **environ},
            )
        self._started.append(process)
        facts = await _ready(name, process, log)
        service = Service(name, process, facts, time.monotonic() - started, log)
        self.services[name] = service
        self.on_ready(service)

    async def _stop(self) -> None:
        await asyncio.gather(*(stop(p, signal.SIGINT, _STOP_SECONDS) for p in self._started))
        await self._stack.aclose()


async def _check_store(endpoints: str) -> None:
    """Raises `StartError` if the store that was told does not answer."""
    try:
        store = open_store(endpoints)
    except ValueError as error:
        raise StartError(f"CROWFLY_STORE: {error}") from None
    try:
        await store.read(wire.WORKERS)
    except StoreError as error:
        raise StartError(f"CROWFLY_STORE={endpoints}: {error}") from None
    finally:
        await store.close()


def _inherited() -> dict[str, str]:
    """What is set for all services; an address is of one alone."""
    own = ("CROWFLY_LISTEN", "CROWFLY_ADVERTISE")
    return {name: value for name, value in os.environ.items() if name not in own}


async def _ready(name: str, process: asyncio.subprocess.Process, log: Path) -> Mapping[str, Any]:
    seconds = _LOAD_SECONDS if name.startswith("worker") else _START_SECONDS
    assert process.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            line = await process.stdout.readline()
    except TimeoutError:
        raise StartError(f"{name} was not ready after {seconds:g} s\n{_tail(log)}") from None
    if not line:
        code = await process.wait()
        raise StartError(f"{name} ended with exit code {code}\n{_tail(log)}")
    facts: Mapping[str, Any] = json.loads(line)
    return facts


def _tail(log: Path) -> str:
    return log.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()


def command(*arguments: str) -> Sequence[str]:
    """The `crowfly` command of this very installation."""
    return [sys.executable, "-m", "crowfly", *arguments]
