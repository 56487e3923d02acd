"""Small files that Podman is pointed to."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import RuntimeTrouble


def ensure_file(path: Path, text: str, mode: int) -> None:
    """Have a file with this text, put in place by a rename: another box's call may be reading it.

    Raise `RuntimeTrouble` if it cannot be written.
    """
    try:
        if path.exists() and path.read_text() == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(mode)
        draft.rename(path)
    except OSError as error:
        raise RuntimeTrouble(f"{path} cannot be written: {error.strerror}") from error
