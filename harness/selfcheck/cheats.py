"""Implementations that would look fast or right if the harness did not look: all must be refused.

Each is measured as any plug-in is, in a worker, beside an honest one that must come through.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.attention import AttentionConfig, Case
from harness.cells import Cell, Site, ask_ceilings, measure_cell
from harness.interface import Attend, AttentionImplementation, MaskTensors
from harness.rows import Row, Status
from harness.selfcheck.outcome import Effort, Outcome
from harness.settings import ImplementationSpec, MeasureSettings
from harness.worker import ForkServer, Limits

_CASE = Case(config=AttentionConfig(hidden_size=512, num_heads=8, seq_len=512))
_MEASURE = MeasureSettings(budget_s=0.5, warmup_max_s=0.3)


class Honest(AttentionImplementation):
    """torch's own attention."""

    name = "honest"

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        scale = case.config.scale
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=scale)


class Memoised(Honest):
    """Returns the first output that it ever computed."""

    name = "memoised output"
    kept: Tensor | None = None

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        honest = super().make_attend(case, masks)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if self.kept is None:
                self.kept = honest(q, k, v)
            return self.kept

        return attend


class MemoisedByInputs(Honest):
    """Computes each set of inputs once and remembers."""

    name = "memoised by inputs"

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        honest, kept = super().make_attend(case, masks), dict[int, Tensor]()

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if q.data_ptr() not in kept:
                kept[q.data_ptr()] = honest(q, k, v)
            return kept[q.data_ptr()]

        return attend


class NoSynchronisation(Honest):
    """Computes in a thread and returns at once; has no ``synchronize``."""

    name = "no synchronisation"

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        honest = super().make_attend(case, masks)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            output = torch.empty_like(q)
            threading.Thread(target=_fill_later, args=(honest, output, q, k, v)).start()
            return output

        return attend


def _fill_later(honest: Attend, output: Tensor, *qkv: Tensor) -> None:
    time.sleep(0.001)
    output.copy_(honest(*qkv))


class StaleBuffer(Honest):
    """Returns what the call before it computed; the very first call is right."""

    name = "stale buffer"

    def __init__(self) -> None:
        self.previous: Tensor | None = None

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        honest = super().make_attend(case, masks)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            now = honest(q, k, v)
            stale, self.previous = now if self.previous is None else self.previous, now
            return stale

        return attend


class Zeros(Honest):
    name = "zeros"

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        return lambda q, k, v: torch.zeros_like(q)


class OneNaN(Honest):
    name = "one NaN"

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        honest = super().make_attend(case, masks)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            output = honest(q, k, v)
            output[..., -1, -1] = torch.nan
            return output

        return attend


CHEATS: tuple[type[Honest], ...] = (
    Memoised,
    MemoisedByInputs,
    NoSynchronisation,
    StaleBuffer,
    Zeros,
    OneNaN,
)


def check_cheats(effort: Effort) -> list[Outcome]:
    """Every cheat is refused and the honest one beside it is not."""
    kinds: tuple[type[Honest], ...] = (Honest, *CHEATS)
    specs = tuple(_spec(kind) for kind in kinds)
    server = ForkServer()
    ceilings = ask_ceilings(server, (_CASE,))
    site = Site(server, Limits(30.0), "selfcheck", "", Honest.name, ceilings, _no_command)
    return list(_outcomes(measure_cell(site, Cell(_CASE, pass_index=1), specs, _MEASURE)))


def _outcomes(rows: dict[str, Row]) -> Iterator[Outcome]:
    for name, row in rows.items():
        is_honest = name == Honest.name
        reason = row.reasons[0] if row.reasons else ""
        figure = f"{row.status.value}{': ' if reason else ''}{reason[:80]}"
        refused = row.status is Status.INCORRECT
        label = "honest implementation" if is_honest else f"cheat: {name}"
        passed = row.status is Status.OK if is_honest else refused
        yield Outcome(label, figure, "ok" if is_honest else "incorrect", passed)


def _spec(kind: type[Honest]) -> ImplementationSpec:
    return ImplementationSpec(kind.name, f"{__name__}:{kind.__name__}")


def _no_command(case: Case, implementation: str) -> str:
    return "mha-bench selfcheck"
