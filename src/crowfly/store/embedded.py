"""An etcd of one's own: a child process, started again when it dies, gone with its parent."""

import asyncio
import logging
import os
import signal
import socket
from pathlib import Path
from types import TracebackType

from crowfly.process import spawn, stop
from crowfly.store.background import begin, end
from crowfly.store.backoff import Backoff
from crowfly.store.etcd_binary import EtcdError, check, command, environment, find_etcd

__all__ = ["EmbeddedEtcd", "EtcdError", "find_etcd"]

log = logging.getLogger(__name__)

READY_SECONDS = 15.0  # 0.2 s on an idle machine; the rest is for a slow disk or a long history
POLL_SECONDS = 0.02
HEALTH_SECONDS = 1.0
STOP_SECONDS = 5.0  # SIGTERM takes 3 to 30 ms
KEEPER_SECONDS = 2 * STOP_SECONDS  # the keeper may have to stop an etcd that was just starting
START_TRIES = 3  # somebody may take a port between our choice and etcd's start

# Between the end of one process and the start of the next.
BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_MOST_SECONDS = 5.0
STEADY_SECONDS = 30.0  # after that long it is not the same trouble again

_LOG_TAIL_BYTES = 4000  # a fatal line of 3.5 has 1 KB of stack
_CHUNK_BYTES = 1 << 16


class EmbeddedEtcd:
    """Use it as `async with`: entering returns the endpoint once etcd serves, leaving when it is
    gone. Its data is in `folder/data`, what it says in `folder/etcd.log`.

    The endpoint stays the same over restarts. Raises `EtcdError` on entering.
    """

    def __init__(self, folder: Path, binary: Path | None = None) -> None:
        self._folder = folder
        self._binary = binary
        self._server: _Server | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def data(self) -> Path:
        return self._folder / "data"

    @property
    def pid(self) -> int:
        """Of the process started last: another one after a restart."""
        assert self._server is not None
        return self._server.pid

    async def __aenter__(self) -> str:
        binary = self._binary or find_etcd()
        await check(binary)
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in range(START_TRIES, 0, -1):
            server = _Server(binary, self.data, self._folder / "etcd.log", _free_ports())
            try:
                await server.start()
                break
            except _EndedAtStartError:
                if left == 1:
                    raise
        self._server = server
        self._keeper = begin(server.keep(), "the keeper of etcd")
        return server.endpoint

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        assert self._keeper is not None
        await end((self._keeper,), KEEPER_SECONDS)
        await self._server.stop()


class _EndedAtStartError(EtcdError):
    """Perhaps a port was taken: another pair may do."""


class _Server:
    """Two ports and a data directory, and the process that serves them at the time."""

    def __init__(self, binary: Path, data: Path, log_path: Path, ports: tuple[int, int]) -> None:
        self._binary = binary
        self._data = data
        self._log_path = log_path
        self._client_port, self._peer_port = ports
        self._process: asyncio.subprocess.Process | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._client_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Returns when it serves. Raises `EtcdError`; then, too, no process is left."""
        argv = command(self._binary, self._data, self._client_port, self._peer_port)
        try:
            with self._log_path.open("ab") as out:
                self._process = await spawn(argv, log=out, environ=environment(os.environ))
        except OSError as error:
            raise EtcdError(f"{self._binary} cannot be started: {error}") from error
        try:
            await self._ready(self._process)
        except BaseException:
            await self.stop()
            raise

    async def keep(self) -> None:
        """Start it again whenever it ends, until cancelled."""
        backoff = Backoff(BACKOFF_FIRST_SECONDS, BACKOFF_MOST_SECONDS)
        loop = asyncio.get_running_loop()
        while True:
            since = loop.time()
            code = await self._ended()
            if loop.time() - since > STEADY_SECONDS:
                backoff.reset()
            log.warning("etcd ended with exit code %s: starting it again", code)
            await asyncio.sleep(backoff.next())
            try:
                await self.start()
            except EtcdError as error:
                log.warning("%s", error)

    async def stop(self) -> None:
        if self._process is not None:
            await stop(self._process, signal.SIGTERM, STOP_SECONDS)
            await self._ended()

    async def _ended(self) -> int:
        """Its exit code. What it writes to stdout goes to the log, so that it never blocks."""
        assert self._process is not None
        assert self._process.stdout is not None
        while chunk := await self._process.stdout.read(_CHUNK_BYTES):
            self._append_to_log(chunk)
        return await self._process.wait()

    def _append_to_log(self, chunk: bytes) -> None:
        try:
            with self._log_path.open("ab") as out:
                out.write(chunk)
        except OSError as error:  # a full disk, perhaps: etcd goes on without its log
            log.warning("what etcd said is lost: %s", error)

    async def _ready(self, process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not await _is_healthy(self._client_port):
                    if process.returncode is not None:
                        raise _EndedAtStartError(f"etcd ended at its start\n{self._log_tail()}")
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise EtcdError(
                f"etcd was not ready after {READY_SECONDS:g} s\n{self._log_tail()}"
            ) from None

    def _log_tail(self) -> str:
        try:
            text = self._log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError as error:
            return f"its log cannot be read: {error}"
        return f"{self._log_path}:\n{text.strip()}"


async def _is_healthy(port: int) -> bool:
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /health HTTP/1.0\r\n\r\n")
                return b'"health":"true"' in await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def _free_ports() -> tuple[int, int]:
    with socket.socket() as client, socket.socket() as peer:
        client.bind(("127.0.0.1", 0))
        peer.bind(("127.0.0.1", 0))
        return client.getsockname()[1], peer.getsockname()[1]
