"""What one gives up for another: memory and error for time, heads, modes, a slow first call."""

from __future__ import annotations

from harness.analysis.additivity import TOLERANCE, additivity
from harness.analysis.break_even import break_even
from harness.analysis.pareto import pareto
from harness.analysis.scaling import scaling
from harness.report import numbers
from harness.report.content import Content
from harness.report.matrices import measured_implementations
from harness.report.phrases import line_text
from harness.report.tables import Field, Table


def front_table(content: Content) -> Table:
    """How often each implementation is dominated in time, memory and error together."""
    found = pareto(content.rows, content.wanted_margin)
    lines = []
    for name in measured_implementations(content):
        mine = found[found["implementation"] == name]
        if not len(mine):
            continue
        beaten = mine[mine["dominated_by"] != "none"]
        by = ", ".join(dict.fromkeys(beaten["dominated_by"])) or numbers.ABSENT
        on_front = len(mine) - len(beaten)
        mark = "best" if on_front == len(mine) else ""
        lines.append((Field(name, mark), Field(f"{on_front} of {len(mine)}"), Field(by)))
    note = (
        "Dominated: another one is no worse in time, memory and error, and better in one of them."
    )
    columns = ("implementation", "not dominated in", "dominated by")
    return Table("Time, memory and error together", columns, tuple(lines), note, num_labels=3)


def heads_table(content: Content) -> Table | None:
    """What more heads cost at the same hidden size."""
    if "num_heads" not in content.axes:
        return None
    lines = [
        (
            Field(line["implementation"]),
            Field(f"{line['value']:g} instead of {line['reference']:g}"),
            Field(numbers.ratio(line["time_ratio"], line["time_low"], line["time_high"])),
            Field(_plain_ratio(line["memory_ratio"])),
            Field(_plain_ratio(line["error_ratio"])),
            Field(str(line["num_matched"])),
        )
        for line in scaling(content.rows, "num_heads").to_dict("records")
    ]
    note = "Geometric means over cases that differ in the number of heads only; unpaired intervals."
    columns = ("implementation", "heads", "time", "memory", "error", "matched cases")
    return Table("More heads at the same hidden size", columns, tuple(lines), note, num_labels=2)


def _plain_ratio(value: float | None) -> str:
    return numbers.ABSENT if numbers.is_absent(value) else f"{value:.3g}x"


def start_table(content: Content) -> Table | None:
    """After how many calls a slow first call, a compilation say, has paid for itself."""
    if content.baseline is None:
        return None
    lines = [
        (
            Field(line["case_id"]),
            Field(line["implementation"]),
            Field(numbers.seconds(line["first_call_s"])),
            Field(numbers.seconds(line["median_s"])),
            Field("never" if numbers.is_absent(line["calls"]) else f"{line['calls']:,}"),
        )
        for line in break_even(content.cells, content.baseline).to_dict("records")
    ]
    note = f"Calls from which on it is ahead of {content.baseline}, first call included."
    columns = ("case", "implementation", "first call", "later calls", "ahead after calls")
    return Table("Slow first calls", columns, tuple(lines), note, num_labels=2)


def modes_table(content: Content) -> Table | None:
    """Where forward_train and backward don't add up to forward_backward."""
    if "mode" not in content.axes:
        return None
    axes = [axis for axis in content.axes if axis != "mode"]
    lines = [
        (
            Field(line["implementation"]),
            Field(line_text({axis: line[axis] for axis in axes}) or "the only one"),
            Field(numbers.seconds(line["parts_s"])),
            Field(numbers.seconds(line["whole_s"])),
            Field(f"{100 * line['gap']:+.0f} %", "" if line["adds_up"] else "bad"),
        )
        for line in additivity(content.cells).to_dict("records")
    ]
    note = (
        "forward_train plus backward against forward_backward, measured in processes of their "
        f"own; more than {numbers.percent(TOLERANCE)} apart says that one of them measures "
        "something else."
    )
    columns = ("implementation", "case", "parts", "whole", "gap")
    return Table("Do the modes add up?", columns, tuple(lines), note, num_labels=2)
