"""What a contender's program shares: its command line, and the one line of JSON that it answers."""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

Reply: TypeAlias = dict[str, Any]
Verb: TypeAlias = Callable[[argparse.Namespace], Awaitable[Reply]]


def command_line(verbs: Mapping[str, Verb], words: Sequence[str] | None) -> argparse.Namespace:
    """Read the verb and its options; each verb takes those that it knows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=sorted(verbs))
    parser.add_argument("--url", default="")
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--bytes", type=int, default=0)
    parser.add_argument("--callers", type=int, default=1)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--mode", default="noop")
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--directory", default="")
    return parser.parse_args(words)


def reply_to(verbs: Mapping[str, Verb], words: Sequence[str] | None = None) -> None:
    """Do what the command line asks, and answer."""
    given = command_line(verbs, words)
    reply = asyncio.run(_answer(verbs[given.verb], given))
    print(json.dumps(reply), flush=True)


async def _answer(verb: Verb, given: argparse.Namespace) -> Reply:
    return await verb(given)


class Stretch:
    """Wall and CPU time of this process from when it is made until it is asked."""

    def __init__(self) -> None:
        """Start."""
        self.started = time.monotonic()
        self._cpu = time.process_time()

    def reply(self, jobs: int, **more: Any) -> Reply:
        """Return what a number of jobs took."""
        seconds, cpu = time.monotonic() - self.started, time.process_time() - self._cpu
        return {"jobs": jobs, "seconds": seconds, "cpu": cpu, **more}


def noise(size: int) -> str:
    """Return text of a length that PostgreSQL cannot compress.

    Base64 of bytes that look random, but are the same for everybody: hashes of numbers.
    """
    hashes = (sha256(b"bench %d" % number).digest() for number in range(-(-size // 42)))
    return b64encode(b"".join(hashes)).decode()[:size]


def peak_memory_bytes() -> int:
    """Return the peak memory of this process.

    What Linux answers to getrusage is no less than the peak of the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return peak_in(status.read_text())
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes if sys.platform == "darwin" else kilobytes * 1024


def peak_in(status: str) -> int:
    """Read the peak from what Linux tells of a process."""
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
