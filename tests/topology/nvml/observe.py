"""The agent's sampler in a process of its own, asked over pipes.

Each line on stdin is answered by the node's record, as JSON, on stdout; the end of stdin ends it.
NVML cannot be unloaded, so each scenario needs a fresh process.
"""

import sys
import time

from google.protobuf.json_format import MessageToJson

from crowfly.service import configure_logging
from crowfly_topology.devices import sampling
from crowfly_topology.record import Agent, compose


def main() -> None:
    configure_logging()
    agent = Agent("node", "epoch", "127.0.0.1:1")
    with sampling(agent.node) as sampler:
        for sequence, _ in enumerate(sys.stdin):
            record = compose(agent, sequence, sampler.readings(), (), time.monotonic())
            sys.stdout.write(MessageToJson(record, indent=None) + "\n")
            sys.stdout.flush()


main()
