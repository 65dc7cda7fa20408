"""Shell completion: Hydra completes what follows `sweep`, the commands' names come from here.

``eval "$(mha-bench -sc install=bash)"`` (zsh and fish likewise) installs both.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence

from harness.planning.axes import AXES

FLAGS = ("-sc", "--shell-completion")


def complete(words: Sequence[str], commands: Sequence[str]) -> None:
    """Answer a shell's question, or print its set-up script."""
    if not any(word.startswith("query=") for word in words):
        _ask_hydra(words)
        return
    program, _, typed = os.environ.get("COMP_LINE", "").partition(" ")
    command, space, rest = typed.lstrip().partition(" ")
    if not space:
        print(" ".join(name for name in commands if name.startswith(command)))
    elif command == "sweep":
        os.environ["COMP_LINE"] = f"{program} {rest}"
        answer = io.StringIO()
        with contextlib.redirect_stdout(answer):
            _ask_hydra(words)
        print(" ".join(_ended(word) for word in answer.getvalue().split()))


def _ask_hydra(words: Sequence[str]) -> None:
    from harness.cli import hydra_app

    hydra_app.run(words)


def _ended(word: str) -> str:
    """A key that holds a list goes on with its members for Hydra; an axis with its values."""
    return f"{word[:-1]}=" if word.endswith(".") and word[:-1] in AXES else word
