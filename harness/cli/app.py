"""The commands of ``mha-bench`` and their options; each imports what it needs when it is called."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli import completion, stored
from harness.cli.failures import explain

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


app.command("compare")(stored.compare)
app.command("report")(stored.report)
app.command("decide")(stored.decide)

_ConfigDir = Annotated[
    Path | None,
    typer.Option("--config-dir", help="Also look for groups in this folder.", exists=True),
]


@app.command("list")
def list_(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]...", help="With --why: AXIS=VALUE of the case. With --probe: names."
        ),
    ] = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Dtypes, modes, masks and sizes, for every device.")
    ] = False,
    why: Annotated[
        str | None, typer.Option(metavar="NAME", help="Why this one can't do a case.")
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Hold claims against tiny real calls on the CPU.")
    ] = False,
    config_dir: _ConfigDir = None,
) -> None:
    """Show implementations (and why one can't run here), sweeps, models and inputs."""
    from harness.cli import claims_view, listing

    folders = [config_dir] if config_dir else []
    if matrix:
        claims_view.show_matrix(folders)
    elif why is not None:
        claims_view.show_why(why, words or [], folders)
    elif probe:
        raise typer.Exit(int(not claims_view.show_probe(words or ["naive"], folders)))
    else:
        listing.show(folders)


@app.command("check")
def check(
    name: Annotated[
        str, typer.Argument(help="An implementation's name, or module:Class.", show_default=False)
    ] = "",
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[OPTION=VALUE]...", help="Its options.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Dtypes to check.", show_default="float32,bfloat16,float16")
    ] = "",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    only: Annotated[str, typer.Option(help="Checks to run, e.g. masks,lengths.")] = "",
    config_dir: _ConfigDir = None,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Check the checks: planted defects must be caught.")
    ] = False,
) -> None:
    """Does an implementation keep every promise? Exit code 1 when a check fails."""
    from harness.cli import checking

    if mutants:
        from harness.cli.mutants import check_mutants

        raise typer.Exit(int(not check_mutants(stored.split(dtype))))

    more_dirs = [config_dir] if config_dir else []
    battery = checking.battery_of(
        name, options or [], stored.split(dtype), device, stored.split(only), more_dirs
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
