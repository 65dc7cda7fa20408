"""Shell completion: Hydra completes what follows `sweep`, the commands' names come from here.

``eval "$(mha-bench -sc install=bash)"`` (zsh and fish likewise) installs both.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

FLAGS = ("-sc", "--shell-completion")


def complete(words: Sequence[str], commands: Sequence[str]) -> None:
    """Answer a shell's question, or print its set-up script."""
    line = os.environ.get("COMP_LINE", "")
    program, _, typed = line.partition(" ")
    is_query = any(word.startswith("query=") for word in words)
    command, space, rest = typed.lstrip().partition(" ")
    if is_query and not space:
        print(" ".join(name for name in commands if name.startswith(command)))
    elif not is_query or command == "sweep":
        from harness.cli import hydra_app

        os.environ["COMP_LINE"] = f"{program} {rest}"
        hydra_app.run([*words])
