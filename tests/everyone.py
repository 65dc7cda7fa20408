"""All implementations of the registry that run on this machine, for tests over them all."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from harness.attention import Case
from harness.interface import Implementation
from harness.plugins.registry import load_implementation
from harness.settings import ImplementationSpec
from tests.problems import a_case

_FOLDER = Path(__file__).parent.parent / "conf" / "implementation"

# Tiles of a few rows, so that small problems have tails.
_MORE = (
    ImplementationSpec(
        "chunked_small", "implementations.chunked:Chunked", {"query_chunk": 3, "key_chunk": 2}
    ),
)
_REASON = re.compile(r"^\w+=\S.* \(.+\)$|^sdpa backend \w+ has no kernel for .+=.+|install")


def all_specs() -> tuple[ImplementationSpec, ...]:
    read = [
        (path.stem, yaml.safe_load(path.read_text())) for path in sorted(_FOLDER.glob("*.yaml"))
    ]
    return (*(ImplementationSpec(n, d["target"], d.get("options") or {}) for n, d in read), *_MORE)


@cache
def load(name: str) -> Implementation:
    return load_implementation(next(spec for spec in all_specs() if spec.name == name))


def runs_here(name: str) -> bool:
    plain = (a_case(), a_case(scope="layer"))
    return any(not load(name).unsupported_reasons(case) for case in plain)


def supports(name: str, case: Case) -> bool:
    """Whether an implementation can do a case; if not, each reason must say value and limit."""
    reasons = load(name).unsupported_reasons(case)
    for reason in reasons:
        assert _REASON.search(reason), reason
    return not reasons


def _param(spec: ImplementationSpec) -> object:
    # Compiling takes seconds for every new shape.
    compiles = "compiled" in spec.target
    marks = (pytest.mark.nightly, pytest.mark.compiles) if compiles else ()
    return pytest.param(spec.name, marks=marks, id=spec.name)


everyone = pytest.mark.parametrize(
    "name", [_param(spec) for spec in all_specs() if runs_here(spec.name)]
)

# Whether one runs on the card is only known there: each test asks for its reasons.
everyone_on_a_card = pytest.mark.parametrize(
    "name", [pytest.param(spec.name, marks=pytest.mark.gpu, id=spec.name) for spec in all_specs()]
)
