"""What can be set of the agent."""

import socket
from dataclasses import dataclass, field

from crowfly import address, wire
from crowfly.settings import check_node, naming
from crowfly.store import parse_endpoints


@dataclass(frozen=True, slots=True)
class TopologySettings:
    store: str = wire.STORE
    node: str = field(default_factory=socket.gethostname)  # the same for this node's workers
    listen: str = "127.0.0.1:0"  # for the reports of this node's workers
    advertise: str | None = None  # where they reach it, if not at `listen`

    def __post_init__(self) -> None:
        with naming("store"):
            parse_endpoints(self.store)
        with naming("listen", "advertise"):
            address.advertised(self.listen, address.parse(self.listen).port, self.advertise)
        check_node(self.node)
