"""Background tasks: a fault of one is logged at once, and the wait for its end has a deadline."""

import asyncio
import logging
from collections.abc import Collection, Coroutine

log = logging.getLogger(__name__)

# A task of the store ends within one turn of the loop: what takes longer lost its cancellation.
END_SECONDS = 1.0


def begin(work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
    """A task that nobody needs to wait for. `name` says in the log what has failed."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_report)
    return task


async def end(tasks: Collection[asyncio.Task[None]], seconds: float = END_SECONDS) -> None:
    """Cancel `tasks`, and wait up to `seconds` for them. Never raises what they raised."""
    for task in tasks:
        task.cancel()
    running = (await asyncio.wait(tasks, timeout=seconds))[1] if tasks else ()
    for task in running:
        log.error("%s did not end within %g s of its cancellation", task.get_name(), seconds)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()):
        log.error("%s failed, and has ended", task.get_name(), exc_info=fault)
