"""The commands of ``mha-bench``; the only part that prints, or knows Hydra.

::

    app          the commands and their options (typer); imports next to nothing
    hydra_app    `sweep` as a Hydra application: arguments in, composed configuration out
    overrides    the sweep's grammar: lists of values without -m
    sweep_job    one composed configuration: plan, run, closing words
    progress     what is seen while a sweep runs
    closing      what is said at its end
    failures     exceptions as one line each
"""

from harness.cli.app import main

__all__ = ["main"]
