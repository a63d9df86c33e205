"""The link to one worker ends when it is told to, and starts again when the worker fails."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from crowfly.v1.dispatcher_pb2 import WORKER_STATE_READY, WORKER_STATE_SUSPECT
from crowfly.v1.worker_pb2 import OpenStream
from crowfly_dispatcher import control_stream
from crowfly_dispatcher.cluster import Cluster
from crowfly_dispatcher.control_link import ControlLink
from crowfly_dispatcher.control_stream import StreamLost
from crowfly_dispatcher.core.model import WorkerFacts

if TYPE_CHECKING:
    from tests.dispatcher.conftest import Stage

Play = Callable[[Callable[["Stage"], Awaitable[None]]], None]


def _link_to_nobody() -> ControlLink:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    facts = WorkerFacts("w0", "e0", f"127.0.0.1:{port}", "m", 64, "fp32", 16, 4)
    return ControlLink(facts, "d0", Cluster([]))


def test_a_link_ends_at_whatever_moment_it_is_cancelled() -> None:
    """A failing call can swallow the cancellation of the task that waits for it."""

    async def scene() -> None:
        for ticks in range(60):
            running = asyncio.create_task(_link_to_nobody().run())
            for _ in range(ticks):
                await asyncio.sleep(0)
            running.cancel()
            done, _ = await asyncio.wait((running,), timeout=20)
            assert done == {running}
            assert running.cancelled()

    asyncio.run(scene())


def test_a_link_without_a_stream_takes_no_claim() -> None:
    async def scene() -> None:
        with pytest.raises(StreamLost, match="worker w0 is not connected"):
            await _link_to_nobody().open(OpenStream(reservation_id="r", prompt_tokens=1), 1)

    asyncio.run(scene())


def test_a_worker_that_falls_silent_is_suspect_until_it_speaks(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_stream, "SILENCE_SECONDS", 0.2)

    async def scene(stage: Stage) -> None:
        dispatcher, worker = await stage.dispatcher(), await stage.worker("w0")
        await dispatcher.until_state("w0", WORKER_STATE_READY)
        worker.mute = True
        await dispatcher.until_state("w0", WORKER_STATE_SUSPECT)
        worker.mute = False
        await dispatcher.until_state("w0", WORKER_STATE_READY)

    play(scene)


def test_a_worker_that_ends_the_stream_is_suspect_until_the_next_one(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, worker = await stage.dispatcher(), await stage.worker("w0")
        await dispatcher.until_state("w0", WORKER_STATE_READY)
        worker.hang_up()
        await dispatcher.until_state("w0", WORKER_STATE_SUSPECT)
        await dispatcher.until_state("w0", WORKER_STATE_READY)
        assert (await dispatcher.place()).worker_id == "w0"
        assert [claim.sequence for claim in worker.opens] == [1]

    play(scene)
