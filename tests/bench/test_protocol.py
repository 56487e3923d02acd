"""Talking to a program: its answer, and every way in which it may not give one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryFile

import pytest

from bench.protocol import (
    Program,
    ProgramError,
    Unsupported,
    last_words,
    limit_for,
    number,
    read_reply,
    words,
)
from tests.support.waiting import wait_until


def _program(code: str) -> Program:
    return Program("peer", [sys.executable, "-c", code])


def test_the_last_line_is_the_answer() -> None:
    assert _program("print('hello'); print('{\"jobs\": 5}')").ask("fill") == {"jobs": 5}


def test_options_reach_the_program_as_a_command_line() -> None:
    code = "import json, sys; print(json.dumps({'argv': sys.argv[1:]}))"
    said = _program(code).ask("drain", url="u", jobs=5, mode=None, shared=True, bytes=0)
    assert said["argv"] == ["drain", "--url", "u", "--jobs", "5", "--shared", "--bytes", "0"]


def test_what_is_none_or_false_is_no_option() -> None:
    assert words({"a": None, "b": False, "c": True, "d": 1.5}) == ["--c", "--d", "1.5"]


def test_a_program_that_dies_is_told_with_its_last_words() -> None:
    code = "import sys; print('{}'); print('no such table', file=sys.stderr); sys.exit(3)"
    with pytest.raises(ProgramError, match=r"peer fill ended with code 3: no such table"):
        _program(code).ask("fill")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("", "printed nothing"),
        ("garbage", "printed no JSON but 'garbage'"),
        ("[1]", r"printed no object but '\[1\]'"),
    ],
)
def test_garbage_is_told(said: str, message: str) -> None:
    with pytest.raises(ProgramError, match=f"peer drain {message}"):
        read_reply("peer drain", said)


def test_a_program_that_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    code = f"""
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({str(told)!r}).write_text(str(child.pid))
time.sleep(600)
"""
    running = _program(code).start("drain")
    wait_until(lambda: told.exists() and bool(told.read_text()), "the program to start its child")
    with pytest.raises(ProgramError, match="peer drain did not end within 0 s"):
        running.answer(0.01)
    wait_until(lambda: not _alive(int(told.read_text())), "the child to be gone, too")


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(ProgramError, match="could not be started"):
        Program("peer", [os.devnull + "/nothing"]).ask("version")


def test_a_program_may_say_that_it_has_no_such_thing() -> None:
    with pytest.raises(Unsupported, match="single: only bulk"):
        _program('print(\'{"unsupported": "only bulk"}\')').ask("single")


def test_a_program_that_is_told_to_end_still_answers() -> None:
    code = """
import signal, sys
def end(*_):
    print('{"jobs": 7}', flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", file=sys.stderr, flush=True)
while True:
    signal.pause()
"""
    running = _program(code).start("drain", shared=True)
    wait_until(lambda: running.output() == "ready", "the program to listen")
    assert not running.ended
    assert running.stop() == {"jobs": 7}


def test_listening_changes_nothing_of_what_a_program_writes() -> None:
    code = "import os; [os.write(2, b'x\\n') for _ in range(200_000)]"
    with TemporaryFile() as file, Popen([sys.executable, "-c", code], stderr=file) as process:
        while process.poll() is None:
            last_words(file)
        assert last_words(file) == "x | x | x"
        assert os.fstat(file.fileno()).st_size == 400_000


@pytest.mark.parametrize("reply", [{}, {"jobs": "5"}, {"jobs": True}, {"jobs": None}])
def test_a_number_must_be_one(reply: dict[str, object]) -> None:
    with pytest.raises(ProgramError, match="gave no number 'jobs'"):
        number("peer", reply, "jobs")


def test_more_jobs_may_take_longer() -> None:
    assert limit_for(None) < limit_for(1_000_000)
