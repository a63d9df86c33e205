"""Wiring of the dispatcher: settings, store, links, server, signals."""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import uvloop

from crowfly import address, wire
from crowfly.address import Address
from crowfly.service import Stop, announce, bind, configure_logging
from crowfly.settings import SettingsError, read_or_exit
from crowfly.store import Store, open_store
from crowfly.v1 import dispatcher_pb2_grpc
from crowfly_dispatcher.cluster import Cluster
from crowfly_dispatcher.control_stream import ANSWER_SECONDS
from crowfly_dispatcher.links import Links
from crowfly_dispatcher.map import WATCHED, follow
from crowfly_dispatcher.placing import TRIES, Placing
from crowfly_dispatcher.service import DispatcherService
from crowfly_dispatcher.settings import DispatcherSettings

# A placement takes a few milliseconds. At worst no worker answers, and the caller is told so.
FINISH_SECONDS = TRIES * ANSWER_SECONDS + 0.5


@asynccontextmanager
async def serve(store: Store, listen: str) -> AsyncIterator[Address]:
    """Serve inside the block, at the address that it is given; at its end, calls in flight get
    `FINISH_SECONDS` to finish.

    Raises `SettingsError` if it cannot listen there.
    """
    server = grpc.aio.server(options=wire.SERVER_OPTIONS)
    port = bind(server, listen)
    cluster = Cluster(WATCHED)
    async with asyncio.TaskGroup() as group:
        links = Links(group, secrets.token_hex(8), cluster)
        service = DispatcherService(cluster, Placing(cluster, links))
        dispatcher_pb2_grpc.add_DispatcherServiceServicer_to_server(service, server)
        following = group.create_task(follow(store, cluster, links), name="map")
        await server.start()
        try:
            yield Address(address.parse(listen).host, port)
        finally:
            await server.stop(FINISH_SECONDS)
            following.cancel()
            await asyncio.wait((following,))  # an event on its way may still start a link
            links.stop()


async def _run(settings: DispatcherSettings) -> None:
    stop = Stop()
    store = open_store(settings.store)
    try:
        async with serve(store, settings.listen) as at:
            announce("dispatcher", {"address": str(at)})
            await stop.drain.wait()
    finally:
        await store.close()


def main() -> None:
    settings = read_or_exit(DispatcherSettings)
    configure_logging()
    try:
        uvloop.run(_run(settings))
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
