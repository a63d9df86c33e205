"""A folder for one run of `crowfly up`, removed at its end or, after a kill, by the next run."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


def _root() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "crowfly"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Held by a lock that the kernel frees with the process, so that a dead run's is told from a
    live one's without trusting process ids."""
    _root().mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        with (_root() / "lock").open("w") as making:
            fcntl.flock(making, fcntl.LOCK_EX)  # runs that start together take turns here
            _remove_abandoned()
            folder = Path(tempfile.mkdtemp(dir=_root(), prefix="up-"))
            lock = held.enter_context((folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def _remove_abandoned() -> None:
    for folder in _root().glob("up-*"):
        with ExitStack() as held:
            if (folder / "lock").is_file():
                lock = held.enter_context((folder / "lock").open("r+"))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue  # alive
            shutil.rmtree(folder)
