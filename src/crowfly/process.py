"""Child processes that end with their parent, however the parent ends."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


async def spawn(
    argv: Sequence[str],
    *,
    log: IO[bytes] | None,
    stdout: int | None = asyncio.subprocess.PIPE,
    environ: Mapping[str, str] = os.environ,
) -> asyncio.subprocess.Process:
    """Start `argv` with stderr into `log` and stdout as a pipe; None for either: the parent's.

    The child leads a process group of its own, so that Ctrl-C in the terminal reaches the parent
    alone, and the kernel kills it when the thread that called this ends, even by SIGKILL. Raises
    `OSError` if it cannot be started.
    """
    parent = os.getpid()

    def die_with_parent() -> None:
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=log,
        env=dict(environ),
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


async def stop(process: asyncio.subprocess.Process, sign: signal.Signals, seconds: float) -> None:
    """Send `sign`, wait up to `seconds`, then SIGKILL. Returns when the process is gone."""
    if process.returncode is not None:
        return
    process.send_signal(sign)
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):  # it ended in this very moment
            process.kill()
        await process.wait()
