"""`crowfly up`: a whole cluster on this machine, until Ctrl-C."""

import argparse
import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

from rich.console import Console

from crowfly import address, wire
from crowfly.cli.cluster import LocalCluster, Service, StartError, command
from crowfly.cli.model import pull_with_bar
from crowfly.cli.scratch import scratch_folder
from crowfly.model_pull import PullError
from crowfly.models import CATALOGUE, folder
from crowfly.process import spawn, stop
from crowfly.settings import SettingsError, naming
from crowfly.store.embedded import EtcdError

_WAIT_SECONDS = 60  # until the dispatcher has seen the workers
_BY_SIGNAL = 128  # + its number, as shells say it
_console = Console(stderr=True, highlight=False, soft_wrap=True)


def run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.model in CATALOGUE:
            pull_with_bar(CATALOGUE[arguments.model])
        folder(arguments.model)
        with scratch_folder() as scratch:
            cluster = LocalCluster(
                folder=scratch,
                model=arguments.model,
                workers=arguments.workers,
                precision=arguments.precision,
                listen=_listen(arguments.once),
                store=os.environ.get("CROWFLY_STORE"),
                on_ready=_show,
            )
            return asyncio.run(_serve(cluster, arguments))
    except (PullError, StartError, EtcdError, OSError) as error:  # the last: a disk, a home
        _console.print(f"crowfly up: {error}", markup=False)
        return 1
    except SettingsError as error:
        _console.print(f"crowfly up: {error}", markup=False)
        return 2
    except KeyboardInterrupt:
        return _BY_SIGNAL + signal.SIGINT


def _listen(once: bool) -> str:
    """One answer needs no fixed port; a cluster that stays does, and says so if it is taken."""
    told = os.environ.get("CROWFLY_LISTEN", wire.DISPATCHER)
    if once and "CROWFLY_LISTEN" not in os.environ:
        return "127.0.0.1:0"
    with naming("listen"):
        wanted = address.parse(told)
    try:
        address.check_free(wanted)
    except OSError as error:
        raise StartError(
            f"{told}: {error.strerror}. If another cluster is up, stop it, or choose another "
            "address with CROWFLY_LISTEN=127.0.0.1:PORT"
        ) from None
    return told


async def _serve(cluster: LocalCluster, arguments: argparse.Namespace) -> int:
    work = asyncio.create_task(_run(cluster, arguments))
    stopped_by: list[int] = []

    def stop_by(sign: int) -> None:
        if not stopped_by:
            _console.print("stopping")
            work.cancel()
        stopped_by.append(sign)

    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(sign, stop_by, sign)
    try:
        return await work
    except asyncio.CancelledError:
        return _BY_SIGNAL + stopped_by[0]


async def _run(cluster: LocalCluster, arguments: argparse.Namespace) -> int:
    starting = f"starting etcd, topology, {cluster.workers} workers, dispatcher"
    with _console.status(starting) as status:
        async with cluster:
            status.stop()
            _console.print(f"{'etcd':<10} {cluster.store}")
            if arguments.ask is not None:
                code = await _ask(cluster, arguments)
                if arguments.once:
                    return code
            await _keep_serving(cluster)
            _console.print("every service has ended")
            return 1


async def _ask(cluster: LocalCluster, arguments: argparse.Namespace) -> int:
    raw = ["--raw"] if arguments.raw else []
    _console.print(f"> {arguments.ask}", style="bold", markup=False)
    where = ["--dispatcher", cluster.address, "--wait", str(_WAIT_SECONDS)]
    asking = await spawn(command("ask", *raw, *where, "--", arguments.ask), stdout=None, log=None)
    try:
        return await asking.wait()
    finally:
        await stop(asking, signal.SIGKILL, seconds=1)


async def _keep_serving(cluster: LocalCluster) -> None:
    where = cluster.address
    told = "" if where == wire.DISPATCHER else f"--dispatcher {where} "
    _console.print(f"serving. Ctrl-C stops it. Try: {_crowfly()} ask {told}'your question'")
    _console.print(f"logs: {cluster.folder}")
    async with asyncio.TaskGroup() as group:
        for service in cluster.services.values():
            group.create_task(_report_end(service))


def _crowfly() -> str:
    """The command as this shell would find it."""
    beside = Path(sys.executable).with_name("crowfly")
    return "crowfly" if shutil.which("crowfly") == str(beside) else str(beside)


async def _report_end(service: Service) -> None:
    code = await service.process.wait()
    _console.print(f"{service.name} ended with exit code {code}: see {service.log}")


def _show(service: Service) -> None:
    facts = {k: v for k, v in service.facts.items() if k not in ("service", "address")}
    if "devices" in facts:
        facts["devices"] = ", ".join(device["name"] for device in service.facts["devices"])
    told = ", ".join(f"{key} {value}" for key, value in facts.items())
    line = f"{service.name:<10} {service.address:<21} {service.seconds:4.1f} s  {told}"
    _console.print(line, markup=False)
