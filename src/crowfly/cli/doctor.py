"""`crowfly doctor`: what this machine has, what is missing, and what to do about it."""

import argparse
import asyncio
import os

from rich.console import Console
from rich.text import Text

from crowfly import wire
from crowfly.cli.finding import Verdict
from crowfly.cli.live import examine_cluster
from crowfly.cli.machine import examine_machine


def run(arguments: argparse.Namespace) -> int:
    """0 if `crowfly up` can run here, else 1."""
    findings = examine_machine(os.environ.get("CROWFLY_MODEL", "smollm2"))
    store = os.environ.get("CROWFLY_STORE", wire.STORE)
    findings += asyncio.run(examine_cluster(store, arguments.dispatcher))
    console, missing = Console(highlight=False, soft_wrap=True), False
    for finding in findings:
        mark, colour = finding.verdict.value
        console.print(Text(mark, colour), Text(f"{finding.what:<12}", "bold"), Text(finding.found))
        missing |= finding.verdict is Verdict.MISSING
    return int(missing)
