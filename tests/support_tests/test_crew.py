"""Worker processes for tests: one that ends by itself is not waited for to be stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.crew import Crew


def test_a_worker_that_ended_by_itself_is_not_waited_for(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    effects.mkdir()
    with Crew(str(tmp_path / "jobs.db"), effects) as crew:
        member = crew.start().wait_ready()
        assert member.suspend()
        member.resume()
        member.process.send_signal(signal.SIGKILL)
        # It has ended, and nobody has asked for its exit code yet.
        os.waitid(os.P_PID, member.process.pid, os.WEXITED | os.WNOWAIT)
        assert not member.suspend()
