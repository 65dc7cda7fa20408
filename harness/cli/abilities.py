"""What every implementation says that it can do on this machine, asked in a worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from harness.attention import Case, DType, Scope
from harness.cells import Claims, ask_claims
from harness.planning.axes import DEVICES
from harness.settings import ImplementationSpec
from harness.worker import ForkServer

# A shape that every kernel can do if it can do anything.
_EASY = {"hidden_size": 512, "num_heads": 8, "seq_len": 128}


@dataclass(frozen=True)
class Abilities:
    """What the implementations said about an easy case: per device, in every dtype and scope."""

    specs: tuple[ImplementationSpec, ...]
    cases: Mapping[str, tuple[Case, ...]]
    claims: Claims

    @classmethod
    def asked(cls, specs: tuple[ImplementationSpec, ...]) -> Abilities:
        cases = {device: tuple(_cases(device)) for device in DEVICES}
        every = tuple(case for of_device in cases.values() for case in of_device)
        return cls(specs, cases, ask_claims(ForkServer(), specs, every))

    def reasons(self, name: str, case: Case) -> tuple[str, ...]:
        return self.claims.unsupported.get((name, case.key), ())

    def able(self, name: str, device: str) -> list[Case]:
        """The cases that an implementation can do on a device."""
        if name in self.claims.problems:
            return []
        return [case for case in self.cases[device] if not self.reasons(name, case)]

    def reasons_of_all(self, device: str) -> list[str]:
        """Reasons that everyone gives for everything on a device: they say something about it."""
        asked = [spec.name for spec in self.specs if spec.name not in self.claims.problems]
        return _common(self.reasons(name, case) for name in asked for case in self.cases[device])

    def why_not(self, name: str) -> list[str]:
        """Why an implementation can't run here at all: its reasons that hold for a whole device."""
        if name in self.claims.problems:
            return [self.claims.problems[name][1]]
        found: dict[str, None] = {}
        for device in DEVICES:
            reasons = _common(self.reasons(name, case) for case in self.cases[device])
            known = self.reasons_of_all(device)
            found |= dict.fromkeys(reason for reason in reasons if reason not in known)
        return list(found)


def _cases(device: str) -> Iterator[Case]:
    for scope in Scope:
        for dtype in DType:
            axes = {"dtype": dtype.value, "scope": scope.value, "device": device}
            yield Case.from_dict({**_EASY, **axes})


def _common(said: Iterable[tuple[str, ...]]) -> list[str]:
    """What is in every one, in the order of the first."""
    every = list(said)
    return [text for text in every[0] if all(text in other for other in every)] if every else []
