"""What a process of a `ProcessGroup` runs: say ready, wait for the start, run, answer.

Started with `python -m`, many at a time: imports only what every interpreter has loaded or what
costs next to nothing; the rest is the target's own.
"""

import importlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Awaitable
from typing import IO, Any


def main() -> None:
    answers = _take_over_stdout()
    request = json.loads(sys.stdin.buffer.readline())
    try:
        function = _load(request["target"])
    except Exception:  # noqa: BLE001  whatever is wrong belongs in the answer
        return _answer(answers, {"error": traceback.format_exc()})
    _answer(answers, {"ready": True})
    if not sys.stdin.buffer.readline():
        return None
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        result = _run(function, request["arguments"])
        return _answer(answers, {"result": result})
    except Exception:  # noqa: BLE001  as above
        return _answer(answers, {"error": traceback.format_exc()})


def _take_over_stdout() -> IO[bytes]:
    """Keep the pipe to the parent; what the target prints goes to its stderr instead."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _run(function: Any, arguments: dict[str, Any]) -> object:
    result = function(**arguments)
    if isinstance(result, Awaitable):
        import asyncio

        return asyncio.run(_settle(result))
    return result


async def _settle(result: Awaitable[object]) -> object:
    return await result


def _answer(answers: IO[bytes], message: dict[str, object]) -> None:
    answers.write(json.dumps(message).encode() + b"\n")
    answers.flush()


def _end_with_parent() -> None:
    # The parent keeps our stdin open for as long as it lives, and sends nothing more.
    # Straight from the descriptor: a thread inside sys.stdin at exit would make Python abort.
    os.read(0, 1)
    os._exit(3)


if __name__ == "__main__":
    main()
