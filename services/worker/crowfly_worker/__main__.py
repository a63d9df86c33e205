"""Wiring of a worker: `python -m crowfly_worker`."""

import logging
import signal
import sys
from pathlib import Path

import torch
import uvloop

from crowfly import models, wire
from crowfly.memory import HostMemoryReader
from crowfly.service import Stop, announce, check_listen_or_exit, configure_logging
from crowfly.settings import SettingsError, read_or_exit
from crowfly.store import open_store
from crowfly.tokenizer import Tokenizer
from crowfly_worker.engine.build import load_engine
from crowfly_worker.engine.port import Engine
from crowfly_worker.loading import describe, log_progress
from crowfly_worker.settings import WorkerSettings
from crowfly_worker.worker import EngineFailed, EngineStuck, Worker, serve

_log = logging.getLogger("crowfly_worker")


def main() -> int:
    configure_logging()
    settings = read_or_exit(WorkerSettings)
    check_listen_or_exit(settings.listen)  # a model may take minutes to load
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while loading: end at once, without a trace
    try:
        folder = models.folder(settings.model)
        tokenizer, engine = _load(folder, settings)
    except (OSError, ValueError, RuntimeError) as error:  # torch's want of memory is the last
        sys.stderr.write(f"cannot serve model {settings.model!r}: {error}\n")
        return 1
    code = 0
    try:
        uvloop.run(_run(engine, tokenizer, folder.name, settings))
    except* SettingsError as errors:
        sys.stderr.write(f"{errors.exceptions[0]}\n")
        code = 2
    except* EngineFailed:
        _log.exception("the engine failed")
        code = 1
    except* EngineStuck as stuck:
        _log.error("stopped all the same: %s", stuck.exceptions[0])
        code = 1
    return code


def _load(folder: Path, settings: WorkerSettings) -> tuple[Tokenizer, Engine]:
    tokenizer = Tokenizer.from_folder(folder)
    engine = load_engine(
        folder,
        host_free_bytes=HostMemoryReader().read().free_bytes,
        precision=settings.precision,
        threads=settings.threads,
        progress=log_progress(folder.name),
    )
    _log.info("%s", describe(engine.facts, engine.load(), torch.get_num_threads()))
    return tokenizer, engine


async def _run(engine: Engine, tokenizer: Tokenizer, model: str, settings: WorkerSettings) -> None:
    stop = Stop()
    store = open_store(settings.store)
    try:
        async with serve(engine, tokenizer, model, settings, store) as worker:
            _announce(worker)
            await stop.drain.wait()
            _log.info(
                "draining: %d streams, %d claims", len(worker.router), len(worker.reservations)
            )
            await worker.drain(settings.drain_seconds, stop.now)
    finally:
        await store.close()


def _announce(worker: Worker) -> None:
    told = worker.registration
    precision = wire.word(wire.PRECISIONS, told.precision)
    facts = {"worker_id": told.worker_id, "model": told.model.name, "precision": precision}
    announce("worker", {"address": told.address, **facts})


if __name__ == "__main__":
    sys.exit(main())
