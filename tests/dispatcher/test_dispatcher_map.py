"""Workers join, leave, drain and die; the store comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import grpc
import pytest

from crowfly import wire
from crowfly.v1.common_pb2 import PRECISION_BF16, WorkerReport
from crowfly.v1.dispatcher_pb2 import (
    WORKER_STATE_CONNECTING,
    WORKER_STATE_DRAINING,
    WORKER_STATE_READY,
    WORKER_STATE_SUSPECT,
    ListModelsRequest,
)
from crowfly.v1.topology_pb2 import (
    DEVICE_KIND_CPU,
    Device,
    DeviceMemory,
    NodeRecord,
    ReportedWorker,
)
from crowfly_dispatcher import cluster

if TYPE_CHECKING:
    from tests.dispatcher.conftest import Stage

Play = Callable[[Callable[["Stage"], Awaitable[None]]], None]


def test_a_lost_worker_is_suspect_and_not_chosen_until_it_is_back(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher = await stage.dispatcher()
        first, second = await stage.worker("a"), await stage.worker("b")
        second.say(waiting_prompt_tokens=1000)
        await dispatcher.until_state("a", WORKER_STATE_READY)
        await dispatcher.until(lambda seen: seen.workers[1].report.waiting_prompt_tokens == 1000)
        assert (await dispatcher.place()).worker_id == "a"
        await first.die()
        await dispatcher.until_state("a", WORKER_STATE_SUSPECT)
        assert (await dispatcher.place()).worker_id == "b"
        await first.start()
        await dispatcher.until_state("a", WORKER_STATE_READY)
        assert (await dispatcher.place()).worker_id == "a"
        assert len(first.hellos) == 2
        assert len(set(first.hellos + second.hellos)) == 1

    play(scene)


def test_a_draining_worker_is_not_chosen(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, worker = await stage.dispatcher(), await stage.worker("w0")
        await dispatcher.until_state("w0", WORKER_STATE_READY)
        worker.say(draining=True)
        await dispatcher.until_state("w0", WORKER_STATE_DRAINING)
        assert await dispatcher.refused() == (
            grpc.StatusCode.UNAVAILABLE,
            "no worker takes requests now (workers: 1 draining)",
        )
        assert worker.opens == []

    play(scene)


def test_a_registered_worker_that_does_not_speak_is_connecting(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, worker = await stage.dispatcher(), await stage.worker("w0")
        await worker.die()
        worker.registration.epoch = "e1"
        await stage.register(worker)
        await dispatcher.until(lambda seen: [w.registration.epoch for w in seen.workers] == ["e1"])
        picture = await dispatcher.until(
            lambda seen: seen.workers[0].state == WORKER_STATE_CONNECTING
        )
        said = {field.name for field, _ in picture.workers[0].ListFields()}
        assert said == {"registration", "state"}  # no report, so no age of one
        status, message = await dispatcher.refused()
        assert status is grpc.StatusCode.UNAVAILABLE
        assert message == "no worker takes requests now (workers: 1 not connected)"

    play(scene)


def test_a_worker_that_left_is_gone(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, worker = await stage.dispatcher(), await stage.worker("w0")
        await dispatcher.until_state("w0", WORKER_STATE_READY)
        await stage.unregister("w0")
        await worker.die()
        await dispatcher.until(lambda seen: not seen.workers)
        assert await dispatcher.refused() == (
            grpc.StatusCode.UNAVAILABLE,
            "no worker is registered: start one that uses the same store",
        )

    play(scene)


def test_a_worker_started_again_under_its_name_is_another_one(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, old = await stage.dispatcher(), await stage.worker("w0", "e0")
        await dispatcher.until_state("w0", WORKER_STATE_READY)
        await old.die()
        new = await stage.worker("w0", "e1", pages=50)
        await dispatcher.until(
            lambda seen: (
                (seen.workers[0].registration.epoch, seen.workers[0].state)
                == ("e1", WORKER_STATE_READY)
            )
        )
        placed = await dispatcher.place()
        assert placed.worker_address == new.registration.address
        assert (len(old.opens), len(new.opens)) == (0, 1)

    play(scene)


def test_another_worker_at_the_address_is_not_taken_for_the_registered_one(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, worker = await stage.dispatcher(), await stage.worker("w0", "e0")
        await dispatcher.until_state("w0", WORKER_STATE_READY)
        worker.say(epoch="e1")
        await dispatcher.until_state("w0", WORKER_STATE_SUSPECT)
        status, _ = await dispatcher.refused()
        assert status is grpc.StatusCode.UNAVAILABLE
        await stage.register(worker)
        assert worker.opens == []

    play(scene)


def test_while_the_store_is_away_placing_goes_on(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, _ = await stage.dispatcher(), await stage.worker("w0")
        await dispatcher.until_state("w0", WORKER_STATE_READY)
        await dispatcher.until(lambda seen: not seen.map_stale)
        stage.store.fade()
        picture = await dispatcher.until(lambda seen: seen.map_stale)
        assert [worker.state for worker in picture.workers] == [WORKER_STATE_READY]
        assert (await dispatcher.place()).worker_id == "w0"
        stage.store.come_back()
        await dispatcher.until(lambda seen: not seen.map_stale)
        assert (await dispatcher.place()).worker_id == "w0"

    play(scene)


def test_a_store_that_lost_its_data_stops_no_placement(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, worker = await stage.dispatcher(), await stage.worker("w0")
        await dispatcher.until_state("w0", WORKER_STATE_READY)
        worker.answer = worker.ignore
        in_flight = asyncio.create_task(dispatcher.place())
        await dispatcher.until(lambda seen: worker.opens != [])
        stage.store.come_back_with({})
        await stage.worker("other", model="k")
        await dispatcher.until_state("other", WORKER_STATE_READY)  # so the empty list was heard
        await dispatcher.until_state("w0", WORKER_STATE_READY)
        (stream,) = worker.streams
        stream.put_nowait(worker.take(worker.opens[0]))
        assert (await in_flight).worker_id == "w0"
        worker.answer = worker.take
        assert (await dispatcher.place()).worker_id == "w0"
        await stage.register(worker)
        assert (await dispatcher.place()).worker_id == "w0"
        assert len(worker.hellos) == 1

    play(scene)


def test_a_drained_workers_link_ends(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "STAY_SECONDS", 0.0)

    async def scene(stage: Stage) -> None:
        dispatcher, worker = await stage.dispatcher(), await stage.worker("w0")
        await dispatcher.until_state("w0", WORKER_STATE_READY)
        worker.say(draining=True)
        await dispatcher.until_state("w0", WORKER_STATE_DRAINING)
        await stage.unregister("w0")
        await dispatcher.until(lambda seen: not seen.workers)
        await dispatcher.until(lambda seen: not worker.streams)

    play(scene)


def test_a_new_list_replaces_the_map_and_keeps_the_links_that_stay(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher = await stage.dispatcher()
        gone = await stage.worker("gone")
        stays = await stage.worker("stays")
        await stage.store.put(wire.NODES + "n0", NodeRecord(node="n0").SerializeToString())
        await dispatcher.until_state("gone", WORKER_STATE_READY)
        await dispatcher.until_state("stays", WORKER_STATE_READY)
        await dispatcher.until(lambda seen: len(seen.nodes) == 1)
        await gone.die()
        await dispatcher.until_state("gone", WORKER_STATE_SUSPECT)
        key, node = wire.WORKERS + "stays", NodeRecord(node="n1")
        stage.store.come_back_with(
            {
                key: stays.registration.SerializeToString(),
                wire.NODES + "n1": node.SerializeToString(),
            }
        )
        picture = await dispatcher.until(
            lambda seen: len(seen.workers) == 1 and seen.nodes[0].node == "n1"
        )
        assert picture.workers[0].state == WORKER_STATE_READY
        assert len(picture.nodes) == 1
        assert len(stays.hellos) == 1

    play(scene)


def test_a_record_that_cannot_be_used_harms_nobody_else(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher = await stage.dispatcher()
        await stage.store.put(wire.WORKERS + "torn", b"\xff\xff")
        await stage.store.put(wire.WORKERS + "empty", b"")
        await stage.store.put(wire.NODES + "torn", b"\xff\xff")
        await stage.store.put(wire.NODES + "other", NodeRecord(node="n0").SerializeToString())
        good = await stage.worker("good")
        await stage.store.put(wire.WORKERS + "liar", good.registration.SerializeToString())
        await dispatcher.until_state("good", WORKER_STATE_READY)
        picture = await dispatcher.cluster()
        assert [worker.registration.worker_id for worker in picture.workers] == ["good"]
        assert list(picture.nodes) == []

    play(scene)


def test_a_nodes_record_tells_devices_and_the_workers_reports(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher, worker = await stage.dispatcher(), await stage.worker("w0")
        await dispatcher.until_state("w0", WORKER_STATE_READY)
        memory = DeviceMemory(total_bytes=64, free_bytes=32, age_ms=10)
        report = WorkerReport()
        report.CopyFrom(worker.report)
        report.sequence += 1000
        report.free_pages = 55
        foreign = WorkerReport(worker_id="w0", epoch="other", sequence=9999, free_pages=1)
        record = NodeRecord(
            node="n0",
            devices=[
                Device(uuid="CPU-n0", kind=DEVICE_KIND_CPU, memory=memory),
                Device(uuid="GPU-1", memory_unknown_reason="no NVML"),
            ],
            workers=[
                ReportedWorker(report=report, age_ms=20),
                ReportedWorker(report=foreign),
                ReportedWorker(report=WorkerReport(worker_id="stranger", sequence=1)),
            ],
        )
        await stage.store.put(wire.NODES + "n0", record.SerializeToString())
        picture = await dispatcher.until(lambda seen: len(seen.nodes) == 1)
        assert [worker.report for worker in picture.workers] == [report]
        assert picture.workers[0].report_age_ms >= 20
        known, unknown = picture.nodes[0].devices
        assert (known.memory.free_bytes, unknown.HasField("memory")) == (32, False)
        assert known.memory.age_ms >= 10
        assert picture.nodes[0].workers[0].age_ms >= 20
        aged = await dispatcher.until(lambda seen: seen.nodes[0].devices[0].memory.age_ms > 60)
        assert aged.nodes[0].workers[0].age_ms > 70
        await stage.store.swap(wire.NODES + "n0", record.SerializeToString(), None)
        await dispatcher.until(lambda seen: not seen.nodes)

    play(scene)


def test_the_models_are_those_that_can_be_placed_now(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        dispatcher = await stage.dispatcher()
        assert list((await dispatcher.stub.ListModels(ListModelsRequest())).models) == []
        short = await stage.worker("a", context_tokens=512)
        long = await stage.worker("b", context_tokens=2048, precision=PRECISION_BF16)
        other = await stage.worker("c", model="k")
        for id in "abc":
            await dispatcher.until_state(id, WORKER_STATE_READY)
        served = (await dispatcher.stub.ListModels(ListModelsRequest())).models
        assert [model.model for model in served] == [
            other.registration.model,
            long.registration.model,
        ]
        assert list(served[1].precisions) == [
            short.registration.precision,
            long.registration.precision,
        ]
        assert list(served[1].worker_addresses) == [
            short.registration.address,
            long.registration.address,
        ]
        other.say(draining=True)
        await dispatcher.until_state("c", WORKER_STATE_DRAINING)
        served = (await dispatcher.stub.ListModels(ListModelsRequest())).models
        assert [model.model.name for model in served] == ["m"]

    play(scene)


def test_nothing_is_left_running_when_it_ends(play: Play) -> None:
    before: set[asyncio.Task[object]] = set()

    async def scene(stage: Stage) -> None:
        before.update(asyncio.all_tasks())
        async with stage.serving() as dispatcher:
            await stage.worker("w0")
            await dispatcher.until_state("w0", WORKER_STATE_READY)
            during = {task.get_name() for task in asyncio.all_tasks() - before}
            assert {"map", "link w0"} <= during
        after = {task.get_name() for task in asyncio.all_tasks() - before}
        assert not {"map", "link w0"} & after

    play(scene)
