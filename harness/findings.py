"""Claims of implementations held against tiny real calls; where they differ, that is a finding.

Needs no torch: the calls are made in workers, so that one that dies takes nothing with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.attention import Case, DType, Mode, Scope
from harness.cells import ask_claims
from harness.jobs import ProbeJob, ProbeMessage
from harness.settings import ImplementationSpec
from harness.worker import Exit, ForkServer, Limits

_STALL_S = 300.0  # compiling is part of the first call


@dataclass(frozen=True)
class Finding:
    """A claim that a real call contradicts.

    Args:
        claimed: Whether the implementation said that it can do the case.
        seen: What the call did instead, in a sentence.
    """

    implementation: str
    case: Case
    claimed: bool
    seen: str

    def __str__(self) -> str:
        said = "can" if self.claimed else "can't"
        return f"{self.implementation} says it {said} do {self.case.id}, but {self.seen}"


def probe_cases(device: str) -> tuple[Case, ...]:
    """Tiny cases that a claim is held against: dtypes, modes, masks, scopes."""
    tiny = {"batch_size": 2, "num_heads": 4, "num_kv_heads": 2, "seq_len": 24, "device": device}
    tiny |= {"head_dim": 64, "hidden_size": 256}
    varied: list[dict[str, Any]] = [{"dtype": dtype.value} for dtype in DType]
    varied += [{"mode": mode.value} for mode in Mode if mode is not Mode.FORWARD]
    varied += [{"mask": mask} for mask in ("causal", "window:8", "padding:0.5", "bias:alibi")]
    varied += [{"mask": mask, "kv_seq_len": 40} for mask in ("top_left", "bottom_right")]
    varied += [{"scope": Scope.LAYER.value, "num_kv_heads": 4}]
    return tuple(Case.from_dict({**tiny, **axes}) for axes in varied)


def probe(
    server: ForkServer, specs: Sequence[ImplementationSpec], cases: Sequence[Case]
) -> tuple[Finding, ...]:
    """Hold the claims of implementations about cases against one real call of each.

    Also what is claimed to be impossible is tried: a claim may be out of date.
    """
    claims = ask_claims(server, specs, cases)
    pairs = tuple((s, c) for s in specs if s.name not in claims.problems for c in cases)
    problems = _call_all(server, pairs)
    found = []
    for (spec, case), problem in zip(pairs, problems, strict=True):
        claimed = (spec.name, case.key) not in claims.unsupported
        if claimed and problem:
            found.append(Finding(spec.name, case, claimed, problem))
        elif not claimed and not problem:
            found.append(Finding(spec.name, case, claimed, "the call gave the right result"))
    return tuple(found)


def _call_all(
    server: ForkServer, pairs: tuple[tuple[ImplementationSpec, Case], ...]
) -> tuple[str, ...]:
    """What is wrong with a call of each pair; empty where it is right."""
    problems: list[str] = []
    while len(problems) < len(pairs):
        job = ProbeJob(pairs[len(problems) :])
        for message in server.run("harness.measuring.probing:try_pairs", job, Limits(_STALL_S)):
            if isinstance(message, ProbeMessage):
                problems.append(message.problem)
            elif isinstance(message, Exit) and len(problems) < len(pairs):
                problems.append(f"the process ended: {message.reason}")
    return tuple(problems)
