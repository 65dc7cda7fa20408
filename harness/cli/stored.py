"""The commands that read stored runs, and their options: compare, report, decide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.errors import InvalidValueError


def split(text: str) -> list[str]:
    """The parts of a comma list."""
    return [part.strip() for part in text.split(",") if part.strip()]


_Run = Annotated[
    Path | None,
    typer.Argument(help="Folder of a run.", show_default="the newest one in results/"),
]


def compare(
    run: _Run = None,
    other: Annotated[
        Path | None, typer.Argument(help="A newer run, to compare this one with.")
    ] = None,
    against: Annotated[
        str, typer.Option(help="Reference within a run: baseline, best, or a name.")
    ] = "baseline",
    margin: Annotated[
        float | None, typer.Option(help="Smallest difference that matters, e.g. 0.03.")
    ] = None,
    fail_on: Annotated[
        str, typer.Option(help="Findings that make the exit code 1, e.g. slower,incorrect.")
    ] = "",
    remeasure: Annotated[
        str | None,
        typer.Option(
            metavar="PYTHON",
            help="Measure the cells again: this older Python and the present one in turns.",
        ),
    ] = None,
    passes: Annotated[int, typer.Option(min=1, help="With --remeasure: processes per cell.")] = 3,
) -> None:
    """Compare the implementations within a run, or one run with another."""
    from harness.cli import reading

    if remeasure is not None:
        from harness.cli import upgrading

        chosen = run or reading.newest_run(Path("results"))
        found = upgrading.compare(chosen, remeasure, margin, split(fail_on), passes)
        raise typer.Exit(int(bool(found)))
    breaches = reading.compare(run, other, against, margin, split(fail_on))
    raise typer.Exit(int(bool(breaches)))


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of runs.", show_default="the newest one in results/"),
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help="Files to write; none: only print.")
    ] = "html,md,csv",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the files.", show_default="the run's own; of a trend, where runs lie"
        ),
    ] = None,
    trend: Annotated[
        bool,
        typer.Option("--trend", help="Several runs as one report: what changed over time."),
    ] = False,
) -> None:
    """Print what a run found, and write it as files."""
    from harness.cli import reading

    if trend:
        reading.trend(runs or [], split(formats), out)
        return
    reading.report(runs or [], split(formats), out)


def decide(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [AXIS=VALUE]...",
            help="The run, and the cells that count; with --predict the case to predict.",
            show_default="the newest run in results/",
        ),
    ] = None,
    max_memory: Annotated[
        str | None, typer.Option(help="Largest extra memory of a call, e.g. 64MiB.")
    ] = None,
    max_latency: Annotated[str | None, typer.Option(help="Longest call, e.g. 5ms.")] = None,
    max_error: Annotated[
        float | None, typer.Option(help="Largest error in unit roundoffs of the dtype.")
    ] = None,
    must_support: Annotated[
        str, typer.Option(help="Masks that it must be right on, e.g. causal,padding:0.25.")
    ] = "",
    workload: Annotated[
        str | None,
        typer.Option(help="What is run: seq_len=128:3,seq_len=2048:1, or a CSV of requests."),
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="Smallest difference that matters, e.g. 0.03.")
    ] = None,
    predict: Annotated[
        bool, typer.Option("--predict", help="Predict the case AXIS=VALUE... instead.")
    ] = False,
    refine: Annotated[
        bool, typer.Option("--refine", help="Measure where the answer is not sharp yet.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the decision as JSON.")] = False,
) -> None:
    """What to use: under constraints, for a workload, or at a size that was not measured."""
    from harness.cli import deciding, reading

    given = words or []
    axes = tuple(word for word in given if "=" in word)
    runs = [Path(word) for word in given if "=" not in word]
    if len(runs) > 1:
        raise InvalidValueError("decide", "one run", " ".join(map(str, runs)))
    run = runs[0] if runs else reading.newest_run(Path("results"))
    if predict:
        deciding.predict(run, axes)
        return
    question = deciding.Question(
        axes, max_memory, max_latency, max_error, tuple(split(must_support)), workload, margin
    )
    deciding.decide(run, question, refine, as_json)
