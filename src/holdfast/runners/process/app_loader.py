"""Where an app is: named in the worker, loaded in the process of a handler."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.errors import BadAddress
from holdfast.runners.process.protocol import AppReference
from holdfast.telemetry.redaction import redact_from_now_on

# The name under which multiprocessing loads a script, so that one guard in it serves both, and a
# handler that uses multiprocessing finds its functions again.
SCRIPT = "__mp_main__"

_loading: ContextVar[bool] = ContextVar("holdfast_loading", default=False)


def app_reference(text: str) -> AppReference:
    """Read `module:attribute`; `__main__:attribute` is the script that runs here."""
    module, _, attribute = text.partition(":")
    if not module or not attribute:
        raise BadAddress(f"invalid app {text!r}: use module:attribute, such as myapp:app")
    if module != "__main__":
        return AppReference(module=module, attribute=attribute)
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return AppReference(module=main.__spec__.name, attribute=attribute)
    if getattr(main, "__file__", None) is None:
        raise BadAddress(
            f"another process cannot import {text!r}, which was typed in: put tasks with "
            "isolate='process' into a module"
        )
    return AppReference(path=str(Path(str(main.__file__)).resolve()), attribute=attribute)


def load_tasks(app: AppReference) -> Mapping[str, Any]:
    """Import the app and return its tasks; raise whatever its import raises."""
    token = _loading.set(True)
    module = _import_file(app.path) if app.path else importlib.import_module(str(app.module))
    found: Any = attrgetter(app.attribute)(module)
    tasks: Mapping[str, Any] = found.tasks
    if getattr(found, "redactors", None):
        redact_from_now_on(found.redact_text)
    _loading.reset(token)
    return tasks


def refuse_while_loading() -> None:
    """Raise in a process that only imports an app: its worker would start another, for ever."""
    if _loading.get():
        raise RuntimeError(
            "the app starts a worker when it is imported: "
            'put that under `if __name__ == "__main__":`'
        )


def _import_file(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(SCRIPT, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    module.__spec__ = None  # as a script's is: multiprocessing then goes by its __file__
    sys.modules["__main__"] = sys.modules[SCRIPT] = module
    spec.loader.exec_module(module)
    return module
