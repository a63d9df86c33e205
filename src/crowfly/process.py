"""Child processes that end with their parent, however the parent ends."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from crowfly import with_parent


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
    `FileNotFoundError` if there is no such program.
    """
    program = shutil.which(argv[0])
    if program is None:
        raise FileNotFoundError(f"there is no program {argv[0]}")
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", with_parent.__file__, str(os.getpid())),
        *(program, *argv[1:]),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=log,
        env=dict(environ),
        start_new_session=True,
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
            os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
        await process.wait()
