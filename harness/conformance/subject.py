"""What a check works on: an implementation at one dtype, and the means to run and judge it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from harness.attention import Case, DType, Scope
from harness.distributions import check_case_distribution
from harness.errors import InvalidValueError
from harness.inputs.sets import make_inputs
from harness.interface import Implementation
from harness.measuring.log_sum_exp import attended_with_lse
from harness.measuring.modes import make_call, output_name
from harness.numerics.judgement import Reference, judge, make_reference
from harness.tensors import AttentionInputs, Inputs

Axes = Mapping[str, Any]

_SIZES: Axes = {"hidden_size": 32, "num_heads": 4, "seq_len": 7}


def of_attention(axes: Axes) -> Axes:
    """The same cell at scope attention, whatever the subject's own scope."""
    return {**axes, "scope": "attention"}


def attention_inputs(case: Case, index: int = 0) -> AttentionInputs:
    """Inputs of a case of scope attention."""
    inputs = make_inputs(case, index)
    assert isinstance(inputs, AttentionInputs)
    return inputs


@contextlib.contextmanager
def _settings_of_torch(case: Case) -> Iterator[None]:
    """The case's threads; afterwards what was set, should an implementation have changed it."""
    was_enabled, threads = torch.is_grad_enabled(), torch.get_num_threads()
    try:
        torch.set_num_threads(case.threads)
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(was_enabled)


class CheckFailure(Exception):  # noqa: N818 - the name of the outcome, not of an accident
    """An implementation does not keep a promise; the message says in which case and where."""

    def __init__(self, case: Case, text: str) -> None:
        super().__init__(f"{case.id}: {text}")


@dataclass
class Tally:
    """What a check has come by: cases it ran, and reasons why it could not run others."""

    cases: int = 0
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Subject:
    """An implementation at one dtype on one device.

    Args:
        scope: At which scope cases are posed unless they say: attention, or layer for an
            implementation that only does whole layers.
        threads: What the implementation gets; the oracle's small products run on one.
    """

    implementation: Implementation
    dtype: DType
    device: str = "cpu"
    scope: Scope = Scope.ATTENTION
    threads: int = 1
    seed: int = 0
    tally: Tally = field(default_factory=Tally)

    def case(self, **axes: Any) -> Case:
        """A small case of this subject's dtype and device."""
        own = {"dtype": self.dtype, "device": self.device, "scope": self.scope}
        return Case.from_dict({**_SIZES, **own, "threads": self.threads, "seed": self.seed, **axes})

    def supported(self, cells: Iterable[Axes]) -> Iterator[Case]:
        """The cases among these that the implementation can do; reasons for the others are kept."""
        for axes in cells:
            case = self.case(**axes)
            reasons = list(self.implementation.unsupported_reasons(case))
            try:
                check_case_distribution(case)
            except InvalidValueError as error:
                reasons.append(str(error))
            self.tally.reasons += reasons
            if not reasons:
                self.tally.cases += 1
                yield case

    def outputs(self, case: Case, inputs: Inputs) -> dict[str, Tensor]:
        """What the implementation returns, by name; with gradients where the mode has them."""
        with _settings_of_torch(case):
            call = make_call(self.implementation, case, inputs)
            named = call.named_outputs(call.run())
            return {name: tensor.detach() for name, tensor in named.items()}

    def with_lse(self, case: Case, inputs: Inputs) -> dict[str, Tensor]:
        """Output and log-sum-exp of the call that gives both; empty where none is offered."""
        with _settings_of_torch(case):
            return attended_with_lse(self.implementation, case, inputs)

    def output(self, case: Case, inputs: Inputs) -> Tensor:
        """The forward output alone."""
        return self.outputs(case, inputs)[output_name(case)]

    def require_right(self, case: Case, inputs: Inputs | None = None) -> None:
        """Fail unless all outputs are what rounding allows around the exact ones.

        Raises:
            CheckFailure: naming the worst element.
        """
        inputs = make_inputs(case) if inputs is None else inputs
        self.require_as_exact(case, make_reference(case, inputs), self.outputs(case, inputs))

    def require_as_exact(
        self, case: Case, reference: Reference, outputs: Mapping[str, Tensor]
    ) -> None:
        """Fail unless these outputs are what rounding allows around the reference."""
        judgement = judge(reference, outputs, self.implementation.contract(case))
        if judgement.reasons:
            raise CheckFailure(case, "; ".join(judgement.reasons))

    def allowance(self, case: Case, inputs: Inputs) -> Tensor:
        """How far rounding may move each element of the forward output, ``[B, H, L, D]``."""
        expected = make_reference(case, inputs).expected[output_name(case)]
        return expected.bound(self.implementation.contract(case))

    def require_close(
        self, case: Case, got: Tensor, wanted: Tensor, allowance: Tensor, claim: str
    ) -> None:
        """Fail unless two outputs agree within an allowance, element by element; NaN never does."""
        got, wanted = got.cpu().double(), wanted.cpu().double()
        excess = (got - wanted).abs() - allowance.cpu()
        if not got.numel() or bool((excess <= 0).all()):
            return
        worst = int(excess.nan_to_num(nan=torch.inf).argmax())
        place = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(worst), got.shape))
        raise CheckFailure(
            case,
            f"{claim}: at [{place}] got {float(got.flatten()[worst]):.6g}, "
            f"expected {float(wanted.flatten()[worst]):.6g} "
            f"within {float(allowance.expand_as(got).flatten()[worst]):.2g}",
        )
