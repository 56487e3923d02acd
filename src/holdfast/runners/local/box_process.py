"""A started box as its worker holds it: the process that it waits for, the output, the end.

Everything happens on the event loop, through descriptors that become readable: no thread and no
process waits per box.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.runners.local.bubblewrap import Launch
from holdfast.runners.spool import OutputLog, OutputPipe

_OUTPUT_SECONDS = 5.0
"""How long output is awaited after the end: where nothing holds a pipe any more, it is there."""
_REPORT_BYTES = 64 * 1024


class BubblewrapReport(msgspec.Struct, rename="kebab"):
    """What bubblewrap reports: the first process once it is made, the code once it has ended."""

    child_pid: int | None = None
    exit_code: int | None = None


class BoxProcess:
    """The outermost process of a box, started by `Launch`. Make it on the loop's thread.

    On that thread because it counts as the parent: with it, bubblewrap and its box die.
    """

    def __init__(self, launch: Launch, log: OutputLog) -> None:
        """Start it; it closes the log. Raise OSError if that fails; then nothing runs."""
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._process, self._descriptor, stdout, stderr = _spawn(launch)
        self._output = [OutputPipe(stdout, "stdout", log), OutputPipe(stderr, "stderr", log)]
        self._was_reaped = False
        self._first: int | None = None
        """A descriptor of the command's first process, or of what forwards signals to it."""
        self._reports = launch.reports
        self._reported = b""
        self.is_launched = asyncio.Event()
        """Set once the box has a first process, or has ended without one."""
        self._ended = asyncio.Event()
        self._loop.add_reader(self._descriptor, self._exited)
        if self._reports is None:
            self._first = os.dup(self._descriptor)
            self.is_launched.set()
        else:
            os.set_blocking(self._reports, False)
            self._loop.add_reader(self._reports, self._read_reports)

    @property
    def has_ended(self) -> bool:
        """Return whether the outermost process is gone; output may still be on its way."""
        return self._process.returncode is not None

    @property
    def had_a_first_process(self) -> bool:
        """Return whether the box got as far as a process of its own."""
        return self._first is not None or bool(_whole_reports(self._reported))

    @property
    def exit_code(self) -> int | None:
        """Return the code of the command once it has ended; None if it never ran."""
        code = self._process.returncode
        if code is None or self._was_reaped:
            return None
        if code < 0:
            return 128 - code
        if self._reports is None:
            return code
        codes = [report.exit_code for report in _whole_reports(self._reported)]
        return next((code for code in codes if code is not None), None)

    @property
    def failed_before_the_command(self) -> bool:
        """Return whether bubblewrap made a first process and gave up before it ran the command.

        It reports an exit code whenever it came as far as to run it.
        """
        code = self._process.returncode
        is_failure = code is not None and code > 0 and not self._was_reaped
        return is_failure and self.had_a_first_process and self.exit_code is None

    def first_words(self) -> str:
        """Return the start of what it wrote to its stderr."""
        return self._output[1].first.decode(errors="replace").strip()

    def terminate(self) -> None:
        """Send SIGTERM to the command's first process; nothing if it has ended."""
        self._signal_first(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the first process, with which its namespace dies, else to the outer."""
        if not self._signal_first(signal.SIGKILL) and not self.has_ended:
            # Not reaped yet, so that the number is still its own.
            self._process.kill()

    async def ended(self) -> None:
        """Wait until the outermost process is gone."""
        await self._ended.wait()

    async def complete_log(self) -> None:
        """Read what is left of the output and close the log, once nothing runs any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_OUTPUT_SECONDS):
                for pipe in self._output:
                    await pipe.ended.wait()
        for pipe in self._output:
            pipe.close()
        self._log.close()

    def _read_reports(self) -> None:
        assert self._reports is not None
        with suppress(BlockingIOError):
            chunk = os.read(self._reports, _REPORT_BYTES)
            self._reported += chunk
            if not chunk:
                self._loop.remove_reader(self._reports)
        reports = _whole_reports(self._reported)
        if reports and not self.is_launched.is_set():
            self._first = _open_child(reports[0].child_pid or 0, self._process.pid)
            self.is_launched.set()

    def _exited(self) -> None:
        self._loop.remove_reader(self._descriptor)
        self._was_reaped = _is_reaped(self._descriptor)
        self._process.wait()
        if self._reports is not None:
            self._read_reports()
            self._loop.remove_reader(self._reports)
        for descriptor in (self._descriptor, self._first, self._reports):
            if descriptor is not None:
                os.close(descriptor)
        self.is_launched.set()
        self._ended.set()

    def _signal_first(self, number: signal.Signals) -> bool:
        if self._first is None or self.has_ended:
            return False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._first, number)
        return True


def _whole_reports(reported: bytes) -> list[BubblewrapReport]:
    """Return the reports that are complete: one is written in several pieces."""
    lines = reported.split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=BubblewrapReport) for line in lines]


def _is_reaped(descriptor: int) -> bool:
    """Return whether other code of this process has taken the exit of a child.

    Python would then report 0, a success that nobody observed.
    """
    try:
        os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _spawn(launch: Launch) -> tuple[subprocess.Popen[bytes], int, int, int]:
    """Start the line; return its process, a descriptor of it, and the ends of its output."""
    stdout, their_stdout = os.pipe()
    stderr, their_stderr = os.pipe()
    try:
        process = subprocess.Popen(
            launch.argv,
            stdin=subprocess.DEVNULL,
            stdout=their_stdout,
            stderr=their_stderr,
            pass_fds=launch.descriptors,
            env=launch.env,
            cwd=launch.cwd,
            # A terminal's Ctrl-C is the worker's to handle.
            start_new_session=True,
        )
        descriptor = _open_or_kill(process)
    except BaseException:
        os.close(stdout)
        os.close(stderr)
        raise
    finally:
        os.close(their_stdout)
        os.close(their_stderr)
    return process, descriptor, stdout, stderr


def _open_or_kill(process: subprocess.Popen[bytes]) -> int:
    """Return a descriptor of a process. Without one (too many are open) it must not run on."""
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        process.kill()
        process.wait()
        raise


def _open_child(pid: int, parent: int) -> int | None:
    """Return a descriptor of a process; None if it has ended, or the number is another's now."""
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        if _parent(pid) == parent:
            return descriptor
        os.close(descriptor)
    return None


def _parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("PPid:")[2].split(maxsplit=1)[0])
