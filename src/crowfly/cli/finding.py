"""One line of what `crowfly doctor` says."""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    GOOD = ("ok", "green")
    ABSENT = ("--", "yellow")  # works without it
    MISSING = ("!!", "red")  # `crowfly up` cannot run


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    what: str
    found: str  # in plain words, and what to do if it is not good
