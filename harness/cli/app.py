"""The commands of ``mha-bench`` and their options; each imports what it needs when it is called."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli import completion
from harness.cli.failures import explain
from harness.errors import InvalidValueError

app = typer.Typer(
    name="mha-bench",
    epilog=(
        "Start with `mha-bench sweep`: two minutes, then a table. "
        'Shell completion: eval "$(mha-bench -sc install=bash)"'
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

BAD_INPUT = 2

# The words of a sweep belong to Hydra, --help included.
_PASS_ON: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            version = metadata.version("mha-bench")
        except metadata.PackageNotFoundError:
            version = "from a checkout that is not installed"
        typer.echo(f"mha-bench {version}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Honest benchmarks of multi-head attention: latency, memory and numerical error."""


@app.command("sweep", context_settings=_PASS_ON)
def sweep(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan only.")] = False,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with this run.", metavar="RUN")
    ] = None,
) -> None:
    """Measure implementations on a grid of shapes: `mha-bench sweep --help` shows all keys."""
    from harness.cli import hydra_app

    words = list(context.args)
    if resume is not None:
        words = hydra_app.resumed(resume, words)
    if dry_run:
        words.append("dry_run=true")
    raise typer.Exit(hydra_app.run(words))


_Run = Annotated[
    Path | None,
    typer.Argument(help="Folder of a run.", show_default="the newest one in results/"),
]


@app.command("compare")
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
        found = upgrading.compare(chosen, remeasure, margin, _split(fail_on), passes)
        raise typer.Exit(int(bool(found)))
    breaches = reading.compare(run, other, against, margin, _split(fail_on))
    raise typer.Exit(int(bool(breaches)))


@app.command("report")
def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of runs.", show_default="the newest one in results/"),
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help="Files to write; none: only print.")
    ] = "html,md,csv",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files.", show_default="the run's own")
    ] = None,
) -> None:
    """Print what a run found, and write it as files."""
    from harness.cli import reading

    reading.report(runs or [], _split(formats), out)


@app.command("decide")
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
        axes, max_memory, max_latency, max_error, tuple(_split(must_support)), workload, margin
    )
    deciding.decide(run, question, refine, as_json)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


_ConfigDir = Annotated[
    Path | None,
    typer.Option("--config-dir", help="Also look for groups in this folder.", exists=True),
]


@app.command("list")
def list_(config_dir: _ConfigDir = None) -> None:
    """Show implementations (and why one can't run here), sweeps, models and inputs."""
    from harness.cli import listing

    listing.show([config_dir] if config_dir else [])


@app.command("check")
def check(
    name: Annotated[str, typer.Argument(help="An implementation's name, or module:Class.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[OPTION=VALUE]...", help="Its options.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Dtypes to check.", show_default="float32,bfloat16,float16")
    ] = "",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    only: Annotated[str, typer.Option(help="Checks to run, e.g. masks,lengths.")] = "",
    config_dir: _ConfigDir = None,
) -> None:
    """Does an implementation keep every promise? Exit code 1 when a check fails."""
    from harness.cli import checking

    more_dirs = [config_dir] if config_dir else []
    battery = checking.battery_of(
        name, options or [], _split(dtype), device, _split(only), more_dirs
    )
    raise typer.Exit(int(not checking.check(battery)))


@app.command("selfcheck")
def selfcheck(
    full: Annotated[
        bool,
        typer.Option(
            "--full/--quick", help="--full: the sample sizes that prove the figures, for a night."
        ),
    ] = False,
) -> None:
    """Prove the harness's own accuracy on this machine; exit code 1 when a check fails."""
    from harness.cli import proofs

    raise typer.Exit(int(not proofs.selfcheck(full=full)))


def main() -> None:
    """Entry point of the console script; wrong input ends with one line and exit code 2."""
    try:
        if sys.argv[1:2] and sys.argv[1] in completion.FLAGS:
            completion.complete(sys.argv[1:], command_names())
        else:
            app()
    except Exception as error:
        line = explain(error)
        if line is None:
            raise
        print(f"mha-bench: {line}", file=sys.stderr)
        sys.exit(BAD_INPUT)


def command_names() -> list[str]:
    """The commands in the order of the help."""
    return [str(command.name) for command in app.registered_commands]
