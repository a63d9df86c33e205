"""The client: places a request, then streams straight from the worker that was chosen."""

from crowfly.client.options import Message, Options, Precision, Profile
from crowfly.client.session import AutoTuneSession, Prompt
from crowfly.client.stream import Completion, Delta, Stream

__all__ = [
    "AutoTuneSession",
    "Completion",
    "Delta",
    "Message",
    "Options",
    "Precision",
    "Profile",
    "Prompt",
    "Stream",
]
