"""The place where services find each other: etcd, or memory in tests."""

from crowfly.store.etcd import EtcdStore
from crowfly.store.etcd_members import parse_endpoints
from crowfly.store.interface import (
    Change,
    Lease,
    Lost,
    Restored,
    Snapshot,
    Store,
    StoreError,
    WatchEvent,
)
from crowfly.store.memory import MemoryStore

__all__ = [
    "Change",
    "Lease",
    "Lost",
    "MemoryStore",
    "Restored",
    "Snapshot",
    "Store",
    "StoreError",
    "WatchEvent",
    "open_store",
    "parse_endpoints",
]


def open_store(endpoints: str) -> Store:
    """The etcd at `endpoints`: `host:port` or `http://host:port`, separated by commas.

    Call it in a running event loop, and `close` it. Nothing is sent yet. Raises `ValueError` for
    endpoints that cannot be used.
    """
    return EtcdStore(endpoints)
