"""The dispatcher's settings; each has a default that works."""

from dataclasses import dataclass

from crowfly import address, wire
from crowfly.settings import naming
from crowfly.store import parse_endpoints


@dataclass(frozen=True, slots=True)
class DispatcherSettings:
    """Raises `SettingsError`."""

    store: str = wire.STORE  # etcd: host:port, several with commas
    listen: str = wire.DISPATCHER  # port 0: any free one

    def __post_init__(self) -> None:
        with naming("store"):
            parse_endpoints(self.store)
        with naming("listen"):
            address.parse(self.listen)
