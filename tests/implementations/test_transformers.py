"""The attention functions of transformers: called as a model calls them, or refused with a reason.

The package stands in for itself here, but for the battery, which needs the real one.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.conformance import CHECKS, DTYPES, run_battery
from harness.interface import DType
from implementations import transformers as adapters
from implementations.transformers import Eager, Sdpa
from tests.implementations.exact import case_of, exact_attention, random_inputs

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="needs transformers: pip install 'mha-bench[transformers]'",
)


class StandIn:
    """Both functions of the package; keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, **arguments: Any
    ) -> tuple[Tensor, None]:
        self.calls.append({"module": module, **arguments})
        group_size = module.num_key_value_groups
        k, v = (x.repeat_interleave(group_size, dim=1) for x in (k, v))
        output = torch.nn.functional.scaled_dot_product_attention(
            q,
            k,
            v,
            arguments["attention_mask"],
            is_causal=arguments.get("is_causal", False),
            scale=arguments["scaling"],
        )
        return output.transpose(1, 2).contiguous(), None


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    function = StandIn()
    modules: dict[str, dict[str, Any]] = {
        "transformers": {},
        "transformers.modeling_utils": {"ALL_ATTENTION_FUNCTIONS": {"sdpa": function}},
        "transformers.models": {},
        "transformers.models.llama": {},
        "transformers.models.llama.modeling_llama": {"eager_attention_forward": function},
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(adapters, "version_of", lambda package: "5.24.0")
    return function


@pytest.mark.parametrize("adapter", [Eager, Sdpa])
@pytest.mark.parametrize("mask", ["none", "causal", "padding:0.5", "causal+bias:random"])
def test_a_model_s_call_gives_the_float64_result(
    adapter: type[Eager | Sdpa], mask: str, stand_in: StandIn
) -> None:
    case = case_of(mask, num_kv_heads=2)
    inputs = random_inputs(case)
    output = adapter().prepare(case, inputs)()
    assert (output.double() - exact_attention(case.config, inputs)).abs().max() < 1e-5
    assert stand_in.calls[0]["module"].num_key_value_groups == 2


def test_eager_is_given_every_mask_as_a_bias(stand_in: StandIn) -> None:
    case = case_of("causal")
    Eager().prepare(case, random_inputs(case))()
    (call,) = stand_in.calls
    assert call["attention_mask"].shape[-2:] == (case.config.seq_len, case.config.kv_seq_len)
    assert call["scaling"] == case.config.scale


def test_sdpa_is_given_the_plain_triangle_as_a_flag_but_not_for_one_query(
    stand_in: StandIn,
) -> None:
    for axes in ({}, {"seq_len": 1, "kv_seq_len": 9, "mask": "top_left"}):
        case = case_of(str(axes.pop("mask", "causal")), **axes)
        Sdpa().prepare(case, random_inputs(case))()
    many, one = stand_in.calls
    assert many["is_causal"]
    assert many["attention_mask"] is None
    assert not one["is_causal"]
    assert one["attention_mask"].isneginf().sum() == 8


def test_sdpa_names_the_kernel_as_torch_s_own_sdpa_does(stand_in: StandIn) -> None:
    case = case_of("none")
    assert Sdpa().kernel(case, random_inputs(case)) == "sdpa:flash"


def test_work_beside_the_kernel_is_noted() -> None:
    assert Eager().notes(case_of(num_kv_heads=2)) == ("grouped heads expanded by transformers",)
    assert Sdpa().notes(case_of("causal", num_kv_heads=2)) == ()
    assert Sdpa().notes(case_of("padding:0.5", num_kv_heads=2)) != ()


@pytest.mark.parametrize("adapter", [Eager, Sdpa])
def test_without_the_package_the_reason_says_what_to_install(
    adapter: type[Eager | Sdpa], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(package: str) -> str:
        raise adapters.PackageNotFoundError(package)

    monkeypatch.setattr(adapters, "version_of", missing)
    assert adapter().unsupported_reasons(case_of()) == (
        "transformers is not installed: pip install 'mha-bench[transformers]'",
    )


def test_an_old_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "version_of", lambda package: "4.51.3")
    (reason,) = Eager().unsupported_reasons(case_of())
    assert reason.startswith("transformers=4.51.3 (at least 5")


def test_what_they_can_t_do_is_refused_beforehand(stand_in: StandIn) -> None:
    (reason,) = Eager().unsupported_reasons(case_of("bottom_right", seq_len=9, kv_seq_len=4))
    assert reason.startswith("seq_len=9 (at most kv_seq_len=4 with mask=bottom_right")
    (reason,) = Eager().unsupported_reasons(case_of(dtype="float64"))
    assert reason.startswith("dtype=float64 (only ")
    (reason,) = Sdpa().unsupported_reasons(case_of(batch_size=0))
    assert reason.startswith("batch_size=0 (at least 1")


def test_nothing_of_transformers_is_imported_before_a_case_is_prepared() -> None:
    program = (
        "import sys; from implementations.transformers import Eager, Sdpa; "
        "from harness.attention import Case; "
        "case = Case.from_dict({'hidden_size': 8, 'num_heads': 1, 'seq_len': 4}); "
        "Eager().unsupported_reasons(case), Sdpa().unsupported_reasons(case); "
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


@needs_transformers
@pytest.mark.nightly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("adapter", [Eager, Sdpa])
def test_the_battery_passes_with_the_real_package(
    adapter: type[Eager | Sdpa], dtype: DType
) -> None:
    results = run_battery(adapter(), [dtype])
    assert len(results) >= len(CHECKS)
    assert {r.check: r.detail for r in results if r.is_failure} == {}
