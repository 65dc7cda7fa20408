"""Implementations that misbehave in one known way each; all but that is right.

They are named as any plug-in is, ``tests.fakes:Raises``, so that the whole pipeline, worker process
included, runs on them. ``at`` says when the fault strikes: ``reasons`` (when asked whether it can
do a case), ``prepare``, or ``call`` (inside the timed call).
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.interface import (
    ALL_MASK_FEATURES,
    Attend,
    AttendWithLse,
    AttentionImplementation,
    Case,
    DType,
    Inputs,
    MaskTensors,
    dense_bias,
)


class Right(AttentionImplementation):
    """Correct attention, every mask; what the fakes compute apart from their fault."""

    name = "right"
    mask_features = ALL_MASK_FEATURES

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        scale = case.config.scale
        bias = dense_bias(case.config, masks, case.device)
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, bias, scale=scale)


class _Faulty(Right):
    """A fake whose fault is an action; what it returns, if it does, replaces nothing."""

    def __init__(self, at: str = "call") -> None:
        self.at = at

    def fault(self) -> None:
        raise NotImplementedError

    def extra_reasons(self, case: Case) -> tuple[str, ...]:
        if self.at == "reasons":
            self.fault()
        return ()

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        right = super().make_attend(case, masks)
        if self.at == "prepare":
            self.fault()

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if self.at == "call":
                self.fault()
            return right(q, k, v)

        return attend


class Raises(_Faulty):
    """Raises a RuntimeError with ``message``."""

    name = "raises"

    def __init__(self, at: str = "call", message: str = "planted fault") -> None:
        super().__init__(at)
        self.message = message

    def fault(self) -> None:
        raise RuntimeError(self.message)


class Segfaults(_Faulty):
    """Reads address 0: the process dies by signal 11."""

    name = "segfaults"

    def fault(self) -> None:
        ctypes.string_at(0)


class Hangs(_Faulty):
    """Never returns."""

    name = "hangs"

    def fault(self) -> None:
        while True:
            time.sleep(0.05)


class AllocatesWithoutEnd(_Faulty):
    """Takes and touches memory in blocks of 64 MiB until somebody stops it.

    Where nobody does, it gives up at ``at_most_mib`` with an AssertionError: a test forgot its
    memory limit.
    """

    name = "allocates_without_end"

    def __init__(self, at: str = "call", at_most_mib: int = 8192) -> None:
        super().__init__(at)
        self.at_most_mib = at_most_mib

    def fault(self) -> None:
        hoard = []
        for _ in range(self.at_most_mib // 64):
            hoard.append(torch.ones(64 * 2**20, dtype=torch.uint8))
        raise AssertionError(f"nobody stopped the allocation of {self.at_most_mib} MiB")


class Exits(_Faulty):
    """Ends its process: by ``sys.exit``, or by ``os._exit`` when ``hard``."""

    name = "exits"

    def __init__(self, at: str = "call", hard: bool = False, code: int = 3) -> None:
        super().__init__(at)
        self.hard = hard
        self.code = code

    def fault(self) -> None:
        if self.hard:
            os._exit(self.code)
        sys.exit(self.code)


class _Wrong(Right):
    """A fake whose fault is its output."""

    def wrong(self, right: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        right = super().make_attend(case, masks)
        return lambda q, k, v: self.wrong(right(q, k, v), v)


class WrongLogSumExp(Right):
    """The right output with a log-sum-exp to base 2, or, with ``wrong_output``, the other way."""

    name = "wrong_log_sum_exp"

    def __init__(self, wrong_output: bool = False) -> None:
        self.wrong_output = wrong_output

    def make_attend_with_lse(self, case: Case, masks: MaskTensors) -> AttendWithLse:
        attend = self.make_attend(case, masks)

        def attend_with_lse(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            lse = (case.config.scale * (q @ k.mT)).logsumexp(dim=-1)
            output = attend(q, k, v)
            return (output * 1.01, lse) if self.wrong_output else (output, lse / math.log(2))

        return attend_with_lse


class ReturnsNaN(_Wrong):
    """The right output with ``count`` NaN at its end; all NaN with ``count=0``."""

    name = "returns_nan"

    def __init__(self, count: int = 1) -> None:
        self.count = count

    def wrong(self, right: Tensor, v: Tensor) -> Tensor:
        flat = right.flatten().clone()
        flat[-self.count :] = float("nan")
        return flat.view_as(right)


class ReturnsZeros(_Wrong):
    """Zeros of the right shape."""

    name = "returns_zeros"

    def wrong(self, right: Tensor, v: Tensor) -> Tensor:
        return right * 0


class ReturnsValue(_Wrong):
    """V itself (for equal lengths)."""

    name = "returns_value"

    def wrong(self, right: Tensor, v: Tensor) -> Tensor:
        return v.clone()


class ReturnsUninitialised(_Wrong):
    """Memory as the allocator gave it."""

    name = "returns_uninitialised"

    def wrong(self, right: Tensor, v: Tensor) -> Tensor:
        return torch.empty_like(right)


class WrongShape(_Wrong):
    """The right output, batch and heads exchanged (and one more row where that is the same)."""

    name = "wrong_shape"

    def wrong(self, right: Tensor, v: Tensor) -> Tensor:
        return torch.cat([right, right[:, :, :1]], dim=2).transpose(0, 1)


class WrongDType(_Wrong):
    """The right output in float64."""

    name = "wrong_dtype"

    def wrong(self, right: Tensor, v: Tensor) -> Tensor:
        return right.double()


class OffByFactor(_Wrong):
    """The right output times ``factor``."""

    name = "off_by_factor"

    def __init__(self, factor: float = 1.01) -> None:
        self.factor = factor

    def wrong(self, right: Tensor, v: Tensor) -> Tensor:
        return right * self.factor


class ReturnsNoTensor(Right):
    """The right output as a list."""

    name = "returns_no_tensor"

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        right = super().make_attend(case, masks)
        return lambda q, k, v: right(q, k, v).tolist()  # type: ignore[return-value]


class PreparesNothing(Right):
    """Its ``prepare`` returns None, where a callable is due."""

    name = "prepares_nothing"

    def prepare(self, case: Case, inputs: Inputs) -> Callable[[], Tensor]:
        return None  # type: ignore[return-value]


class MemoisesOutput(Right):
    """Computes once and returns that same output for ever, whatever the inputs."""

    name = "memoises_output"

    def __init__(self) -> None:
        self.memory: Tensor | None = None

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        right = super().make_attend(case, masks)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if self.memory is None:
                self.memory = right(q, k, v)
            return self.memory

        return attend


class MemoisesByInputs(Right):
    """Computes the first time it sees a storage of q and remembers: right, and a cheat."""

    name = "memoises_by_inputs"

    def __init__(self) -> None:
        self.memory: dict[int, Tensor] = {}

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        right = super().make_attend(case, masks)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if q.data_ptr() not in self.memory:
                self.memory[q.data_ptr()] = right(q, k, v)
            return self.memory[q.data_ptr()]

        return attend


def spin_until(deadline_s: float) -> None:
    """Keep the processor busy until ``time.perf_counter()`` reaches the deadline."""
    while time.perf_counter() < deadline_s:
        pass


class SlowByFactor(Right):
    """The right output in ``factor`` times the time: what it computed took, it spins on for."""

    name = "slow_by_factor"

    def __init__(self, factor: float = 1.02) -> None:
        self.factor = factor

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        right = super().make_attend(case, masks)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            start = time.perf_counter()
            output = right(q, k, v)
            spin_until(start + (time.perf_counter() - start) * self.factor)
            return output

        return attend


class FirstCallsSlow(Right):
    """Every call takes ``seconds``, the first ``calls`` of the instance ``factor`` times that."""

    name = "first_calls_slow"

    def __init__(self, calls: int = 3, factor: float = 10.0, seconds: float = 0.002) -> None:
        self.calls = calls
        self.factor = factor
        self.seconds = seconds
        self.seen = 0

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        right = super().make_attend(case, masks)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.seen += 1
            times = self.factor if self.seen <= self.calls else 1.0
            deadline = time.perf_counter() + self.seconds * times
            output = right(q, k, v)
            spin_until(deadline)
            return output

        return attend


class SpinFor(Right):
    """The right output after exactly ``seconds`` (for cases that take less)."""

    name = "spin_for"

    def __init__(self, seconds: float = 0.001) -> None:
        self.seconds = seconds

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        right = super().make_attend(case, masks)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            deadline = time.perf_counter() + self.seconds
            output = right(q, k, v)
            spin_until(deadline)
            return output

        return attend


class AllocatesBytes(Right):
    """Fills a temporary of ``mib`` MiB and lets go of it before the right output is computed."""

    name = "allocates_bytes"

    def __init__(self, mib: int = 64) -> None:
        self.mib = mib

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        right = super().make_attend(case, masks)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            temporary = torch.ones(self.mib * 2**20, dtype=torch.uint8, device=q.device)
            del temporary
            return right(q, k, v)

        return attend


class ReportsThreads(Right):
    """Names the number of threads that it sees, when called, as its kernel; prints it too."""

    name = "reports_threads"

    def kernel(self, case: Case, inputs: Inputs) -> str:
        return f"threads={torch.get_num_threads()}"

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        right = super().make_attend(case, masks)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            print(f"threads={torch.get_num_threads()}")
            return right(q, k, v)

        return attend


class ChangesThreads(Right):
    """Sets torch's thread number to ``threads`` inside its call and leaves it so."""

    name = "changes_threads"

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        right = super().make_attend(case, masks)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            torch.set_num_threads(self.threads)
            return right(q, k, v)

        return attend


class AlwaysUnsupported(Right):
    """Can do nothing, and says so."""

    name = "always_unsupported"

    def extra_reasons(self, case: Case) -> tuple[str, ...]:
        return (f"seq_len={case.config.seq_len} (at most -1)",)


class TooModest(Right):
    """Right everywhere, but claims that it can do float32 without a mask only."""

    name = "too_modest"
    mask_features = frozenset()
    dtypes = frozenset({DType.FLOAT32})
