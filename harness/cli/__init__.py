"""The commands of ``mha-bench``; the only part that prints, or knows Hydra.

::

    app, stored   the commands and their options (typer); import next to nothing
    hydra_app     `sweep` as a Hydra application: arguments in, composed configuration out
    overrides     the sweep's grammar: lists of values without -m
    sweep_job     one composed configuration: plan, run, closing words
    progress, closing, plan_text            what is seen meanwhile, and at the end
    reading, deciding, listing, checking... what the other commands do
    completion    what a shell asks
    failures      exceptions as one line each
"""

from harness.cli.app import main

__all__ = ["main"]
