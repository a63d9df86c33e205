"""Names and options that both ends of a wire must agree on."""

from collections.abc import Mapping
from typing import TypeVar

from crowfly.v1 import common_pb2

T = TypeVar("T")

# Keys of the store.
WORKERS = "/crowfly/v1/workers/"  # + worker_id -> WorkerRegistration, lease of the worker
NODES = "/crowfly/v1/nodes/"  # + node -> NodeRecord, lease of the node's agent

LEASE_SECONDS = 5  # a worker or agent that died without a word leaves the map after this
TICK_SECONDS = 0.05  # the map's period
HEARTBEAT_SECONDS = 1.0  # a record or report is sent at least this often
CAPACITY_SECONDS = 0.02  # a worker tells its dispatchers of changes at most this often
CLAIM_SECONDS = 5.0  # a claim whose caller does not come is freed after this

DISPATCHER = "127.0.0.1:8700"  # where a dispatcher listens unless told otherwise
STORE = "127.0.0.1:2379"  # where etcd is expected unless told otherwise

# Without the ping timeout a frozen peer (no FIN, no RST) is never noticed; with it after 5 to
# 8 s. Servers allow pings this often. The least reconnect backoff is also how long a connection
# may take: at 100 ms, calls to a busy worker failed with UNAVAILABLE. Proxies of the environment
# are for the web, not for tokens.
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)
TOKENIZER_BYTES = 64 << 20  # the largest tokenizer that GetTokenizer returns

PROFILES = {
    "latency_optimized": common_pb2.TUNING_PROFILE_LATENCY_OPTIMIZED,
    "throughput_optimized": common_pb2.TUNING_PROFILE_THROUGHPUT_OPTIMIZED,
    "memory_efficient": common_pb2.TUNING_PROFILE_MEMORY_EFFICIENT,
}
PRECISIONS = {
    "fp32": common_pb2.PRECISION_FP32,
    "bf16": common_pb2.PRECISION_BF16,
    "fp16": common_pb2.PRECISION_FP16,
}
KERNELS = {
    "torch": common_pb2.KERNEL_RUNG_TORCH,
    "fused": common_pb2.KERNEL_RUNG_FUSED,
    "mega": common_pb2.KERNEL_RUNG_MEGA,
}


def word(names: Mapping[str, T], value: T) -> str:
    """The word for a number of the wire, for people; one that this version does not know as the
    number itself."""
    return next((name for name, number in names.items() if number == value), str(value))
