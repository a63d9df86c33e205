"""LLM inference as the crow flies: what a user imports."""

from crowfly.client import (
    AutoTuneSession,
    Completion,
    Delta,
    Message,
    Options,
    Precision,
    Profile,
    Prompt,
    Stream,
)
from crowfly.errors import (
    CrowflyError,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    InvalidTicket,
    ModelNotFound,
    NoCapacity,
    Unavailable,
)

__all__ = [
    "AutoTuneSession",
    "Completion",
    "CrowflyError",
    "DeadlineExceeded",
    "Delta",
    "InternalError",
    "InvalidRequest",
    "InvalidTicket",
    "Message",
    "ModelNotFound",
    "NoCapacity",
    "Options",
    "Precision",
    "Profile",
    "Prompt",
    "Stream",
    "Unavailable",
]
