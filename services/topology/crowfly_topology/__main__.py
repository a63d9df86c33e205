"""Wiring of the topology agent: `python -m crowfly_topology`."""

import asyncio
import secrets
import sys

import grpc

from crowfly import address, wire
from crowfly.service import Stop, announce, bind, configure_logging
from crowfly.settings import SettingsError, read_or_exit
from crowfly.store import Store, open_store
from crowfly.v1 import topology_pb2, topology_pb2_grpc
from crowfly_topology import record
from crowfly_topology.devices import sampling
from crowfly_topology.publisher import Compose, Publisher
from crowfly_topology.reports import Reports
from crowfly_topology.sampler import Sampler
from crowfly_topology.servicer import TopologyServicer
from crowfly_topology.settings import TopologySettings


def main() -> None:
    configure_logging()
    settings = read_or_exit(TopologySettings)
    with sampling(settings.node) as sampler:
        try:
            asyncio.run(_serve(settings, sampler))
        except SettingsError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(2)


async def _serve(settings: TopologySettings, sampler: Sampler) -> None:
    stop = Stop()
    reports = Reports()
    server = grpc.aio.server(options=wire.SERVER_OPTIONS)
    topology_pb2_grpc.add_TopologyServiceServicer_to_server(TopologyServicer(reports), server)
    port = bind(server, settings.listen)
    told = address.advertised(settings.listen, port, settings.advertise)
    agent = record.Agent(settings.node, secrets.token_hex(8), str(told))
    await server.start()
    store = open_store(settings.store)

    def compose(sequence: int, now: float) -> topology_pb2.NodeRecord:
        return record.compose(agent, sequence, sampler.readings(), reports.newest(), now)

    try:
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(_publish(store, wire.NODES + agent.node, compose))
            _announce(agent, sampler)
            await stop.drain.wait()
            publishing.cancel()
    finally:
        await store.close()
        await server.stop(None)


async def _publish(store: Store, key: str, compose: Compose) -> None:
    """Until cancelled; the key goes with it. A store that is away delays nothing but this."""
    lease = await store.lease(wire.LEASE_SECONDS)
    try:
        await Publisher(lease, key, compose).run()
    finally:
        await lease.revoke()


def _announce(agent: record.Agent, sampler: Sampler) -> None:
    devices = [
        {"uuid": reading.identity.uuid, "name": reading.identity.name}
        for reading in sampler.readings()
    ]
    announce("topology", {"address": agent.address, "node": agent.node, "devices": devices})


if __name__ == "__main__":
    main()
