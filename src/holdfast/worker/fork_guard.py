"""While a worker is open in this process, a fork is refused.

A forked child has the worker's connections, leases and identity, and none of the threads that keep
them: it could write in the worker's name, or hang on a lock that nobody releases. Starting other
programs (`subprocess`, `multiprocessing` by spawn) is not a fork in this sense and stays allowed.
"""

from __future__ import annotations

import sys
import weakref

from holdfast.errors import ForkRefused

_open: weakref.WeakSet[object] = weakref.WeakSet()
_installed = False


def forbid_fork(worker: object) -> None:
    """Refuse forks until `allow_fork` is called for this worker, or it is gone."""
    global _installed  # noqa: PLW0603  an audit hook cannot be removed, so it is added once
    _open.add(worker)
    if not _installed:
        _installed = True
        sys.addaudithook(_refuse)


def allow_fork(worker: object) -> None:
    """Stop refusing forks because of this worker."""
    _open.discard(worker)


def _refuse(event: str, _: object) -> None:
    # Only a hook for audit events can keep os.fork from happening: what the hooks of
    # os.register_at_fork raise is ignored.
    if event in ("os.fork", "os.forkpty") and _open:
        raise ForkRefused(
            "a worker is open in this process, and a forked child would share its connections "
            "without its threads: start the child by multiprocessing.get_context('spawn') or "
            "subprocess, run the handler with isolate='process', or fork before the worker starts"
        )
