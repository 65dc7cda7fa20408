"""`mha-bench check`: the conformance battery on one implementation, in a worker that may die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from harness.attention import DType
from harness.choices import as_choice
from harness.cli.listing import known_implementations
from harness.errors import InvalidValueError, PluginError
from harness.planning.axes import DEVICES
from harness.planning.names import unknown_name
from harness.planning.targets import require_targets
from harness.settings import ImplementationSpec
from harness.worker import Channel, Ending, Exit, ForkServer, Limits

_LOG_LINES = 12
_STALL_S = 600.0  # one check, compilation included


@dataclass(frozen=True)
class Battery:
    """What is to be checked.

    Args:
        dtypes: Names; empty for those that the battery tries by itself.
        only: Names of checks; empty for all.
    """

    spec: ImplementationSpec
    dtypes: tuple[str, ...] = ()
    device: str = "cpu"
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One check at one dtype, as the worker sends it; ``mark`` is ok, FAIL, skip or known."""

    mark: str
    check: str
    dtype: str
    detail: str


def check(battery: Battery) -> bool:
    """Print every check's outcome as it comes; returns whether none has failed."""
    return follow("harness.cli.checking:run_checks", battery, battery.spec.name)


def follow(target: str, payload: object, name: str) -> bool:
    """Print the findings that a worker sends, and their count; returns whether none is a failure.

    Raises:
        PluginError, InvalidValueError: sent by the worker.
    """
    console, found = Console(), list[Finding]()
    for message in ForkServer().run(target, payload, Limits(_STALL_S)):
        if isinstance(message, PluginError | InvalidValueError):
            raise message
        if isinstance(message, Exit) and message.ending is not Ending.FINISHED:
            message = Finding("FAIL", "the next check", "", _account(message))
        if isinstance(message, Finding):
            if not _is_known_skip(message, found):
                _print(message, console)
            found.append(message)
    _print_end(name, found, console)
    return not any(finding.mark == "FAIL" for finding in found)


def _is_known_skip(finding: Finding, found: Sequence[Finding]) -> bool:
    """Whether a check of this dtype was skipped for the same reason before: said once is enough."""
    return finding.mark == "skip" and any(
        (f.mark, f.dtype, f.detail) == ("skip", finding.dtype, finding.detail) for f in found
    )


def _print_end(name: str, found: Sequence[Finding], console: Console) -> None:
    """Skips by reason, failures by name, and the count of all."""
    skips = Counter((f.dtype, f.detail) for f in found if f.mark == "skip")
    for (dtype, reason), count in skips.items():
        if count > 1:
            text = f"skipped {count} checks of {dtype}: {reason}"
            console.print(text, style="dim", markup=False, highlight=False)
    failures = [f"{f.check} ({f.dtype})" for f in found if f.mark == "FAIL"]
    if failures:
        text = f"failed: {', '.join(failures)}"
        console.print(text, style="bold red", markup=False, highlight=False)
    counts = Counter(finding.mark for finding in found)
    summary = ", ".join(f"{count} {mark}" for mark, count in counts.items())
    console.print(f"{name}: {summary}", markup=False, highlight=False)


def _account(end: Exit) -> str:
    """How a worker ended, with the first lines of what it said last."""
    return "\n".join([end.reason, *end.log.splitlines()[:_LOG_LINES]])


def run_checks(battery: Battery, channel: Channel) -> None:
    """Worker target: load the implementation, run the battery, send each finding."""
    from harness.conformance import DTYPES, CheckResult, Outcome, run_battery
    from harness.plugins.registry import load_implementation

    marks = {Outcome.PASSED: "ok", Outcome.FAILED: "FAIL", Outcome.SKIPPED: "skip"}
    ended = 0

    def observe(result: CheckResult) -> None:
        nonlocal ended
        ended += 1
        mark = marks.get(result.outcome, "known")
        channel.send(Finding(mark, result.check, result.dtype.value, _detail(result)))
        channel.enter(ended)

    channel.enter(0)
    try:
        dtypes = tuple(DType(name) for name in battery.dtypes) or DTYPES
        implementation = load_implementation(battery.spec)
        run_battery(implementation, dtypes, battery.device, battery.only, observe=observe)
    except (PluginError, InvalidValueError) as error:
        channel.send(error)


def _detail(result: Any) -> str:
    if result.is_failure:
        return f"{result.detail} (broken promise: {result.promise})"
    return result.detail or f"{result.promise} ({result.cases} cases, {result.time_s:.1f} s)"


def _print(finding: Finding, console: Console) -> None:
    style = {"ok": "green", "FAIL": "bold red"}.get(finding.mark, "dim")
    console.print(f"{finding.mark:5} {finding.dtype:8} ", style=style, end="", highlight=False)
    console.print(
        f"{finding.check}: {finding.detail}", markup=False, highlight=False, soft_wrap=True
    )


def battery_of(
    name: str,
    options: Sequence[str],
    dtypes: Sequence[str],
    device: str,
    only: Sequence[str],
    more_dirs: Sequence[Path],
) -> Battery:
    """What a command line asks for.

    Args:
        name: An implementation's name, or ``module:Class``.
        options: ``OPTION=VALUE`` words.

    Raises:
        InvalidValueError, PluginError: a name does not exist.
    """
    spec = _spec(name, more_dirs)
    require_targets([spec])
    for dtype in dtypes:
        as_choice("dtype", DType, dtype)
    if device not in DEVICES:
        raise unknown_name("device", "a device", device, DEVICES)
    chosen = ImplementationSpec(spec.name, spec.target, {**spec.options, **_read(options)})
    return Battery(chosen, tuple(dtypes), device, tuple(_full_names(only)))


def _spec(name: str, more_dirs: Sequence[Path]) -> ImplementationSpec:
    if ":" in name:
        return ImplementationSpec(name.rpartition(":")[2], name)
    known = {spec.name: spec for spec in known_implementations(more_dirs)}
    if name not in known:
        raise unknown_name("check", "an implementation, or module:Class", name, known)
    return known[name]


def _read(options: Sequence[str]) -> Mapping[str, Any]:
    for option in options:
        if "=" not in option:
            raise InvalidValueError("check", "OPTION=VALUE", option)
    read = OmegaConf.from_dotlist(list(options))
    return {str(name): value for name, value in read.items()}


def _full_names(checks: Sequence[str]) -> Iterator[str]:
    for check_name in checks:
        yield check_name if check_name.startswith("check_") else f"check_{check_name}"
