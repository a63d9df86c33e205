"""`python with_parent.py PARENT_PID PROGRAM ARGUMENT...`: become PROGRAM, to be killed by the kernel
when the parent ends.

A program of its own, since Python code that ran between fork and exec crashed children of
processes whose other threads were inside gRPC.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it ended before the line above
        sys.exit(1)
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main()
