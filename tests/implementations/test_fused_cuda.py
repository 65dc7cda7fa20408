"""``fused`` on CUDA as far as it goes without a card, and the conformance battery on one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.conformance import DTYPES, run_battery
from harness.interface import (
    AttentionConfig,
    AttentionInputs,
    Case,
    Contract,
    DType,
    InvalidValueError,
    Mask,
)
from implementations.fused import Fused
from implementations.fused.cuda import FusedOnCuda
from implementations.fused.cuda.arguments import Geometry, MaskOperands
from implementations.fused.cuda.implementation import heads_per_tile, parts_of_keys
from implementations.fused.cuda.plan import Plan, forward_programs
from implementations.fused.cuda.tiles import (
    NAMED,
    Tiles,
    block_dim,
    forward_tiles,
    key_gradient_tiles,
    query_gradient_tiles,
    tiles_named,
)
from implementations.fused.cuda.tuning import (
    fastest,
    first_tiles,
    is_worth_trying,
    stand_in_masks,
)

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="needs triton: pip install 'mha-bench[triton]'",
)


def config_of(mask: str = "none", **axes: Any) -> AttentionConfig:
    sizes = {"hidden_size": 256, "num_heads": 4, "seq_len": 64, "batch_size": 2, "dtype": "float16"}
    return AttentionConfig(**(sizes | axes), mask=Mask.parse(mask))


def on_cuda(mask: str = "none", **axes: Any) -> Case:
    return Case(config=config_of(mask, **axes), device="cuda")


def without_device_reasons(case: Case) -> tuple[str, ...]:
    class OnAnyCard(FusedOnCuda):
        def device_reasons(self, case: Case) -> tuple[str, ...]:
            return ()

    return OnAnyCard().unsupported_reasons(case)


class TestReasons:
    def test_without_a_card_that_is_the_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        (reason,) = Fused().unsupported_reasons(on_cuda())
        assert "no CUDA device" in reason

    def test_without_triton_the_reason_names_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "implementations.fused.cuda.implementation.find_spec", lambda name: None
        )
        (reason,) = Fused().unsupported_reasons(on_cuda())
        assert reason == "triton is not installed: pip install 'mha-bench[triton]'"

    def test_an_old_card_is_refused_by_its_capability(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
        reasons = tuple(FusedOnCuda().device_reasons(on_cuda()))
        assert reasons == ("compute capability 7.5 (at least 8.0)",)

    @needs_triton
    @pytest.mark.parametrize(
        ("axes", "reason"),
        [
            ({"hidden_size": 1028, "head_dim": 257}, "head_dim=257 (at most 256)"),
            ({"dtype": "float64"}, "dtype=float64 (only bfloat16, float16, float32)"),
            (
                {"batch_size": 2**20, "num_heads": 256, "seq_len": 128},
                f"programs={2**35} (at most {2**31 - 1}: an axis of the launch grid)",
            ),
        ],
    )
    def test_a_case_beyond_a_limit_is_refused_with_value_and_limit(
        self, axes: dict[str, Any], reason: str
    ) -> None:
        assert without_device_reasons(on_cuda(**axes)) == (reason,)

    @needs_triton
    @pytest.mark.parametrize("axes", [{"batch_size": 65536}, {"num_heads": 65536, "head_dim": 16}])
    def test_c41_c42_more_than_65535_entries_or_heads_are_no_limit(
        self, axes: dict[str, Any]
    ) -> None:
        assert without_device_reasons(on_cuda(**axes)) == ()


def test_the_cpu_keeps_its_own_kernels() -> None:
    case = Case(config=config_of(head_dim=300))
    assert not any("256" in reason for reason in Fused().unsupported_reasons(case))


def test_an_unknown_size_of_tiles_is_refused_with_the_choices() -> None:
    with pytest.raises(InvalidValueError, match=r"128x64w8s3"):
        Fused(tiles="17x3")


@pytest.mark.parametrize("name", sorted(NAMED))
def test_tiles_go_by_their_name(name: str) -> None:
    assert str(tiles_named(name)) == name
    assert FusedOnCuda(tiles=name).forced_tiles == NAMED[name]


def test_only_float32_of_three_products_is_judged_as_reduced() -> None:
    assert Fused("bf16x3").contract(on_cuda(dtype="float32")) is Contract.BF16X3
    assert FusedOnCuda(reduced=True).contract(on_cuda(dtype="float32")) is Contract.BF16X3
    assert FusedOnCuda(reduced=True).contract(on_cuda(dtype="bfloat16")) is Contract.FUSED
    assert FusedOnCuda().contract(on_cuda(dtype="float32")) is Contract.FUSED


class TestDivision:
    def test_few_queries_share_a_tile_with_the_heads_of_their_group(self) -> None:
        assert heads_per_tile(config_of(num_kv_heads=1, seq_len=1)) == 4
        assert heads_per_tile(config_of(num_kv_heads=1, seq_len=4)) == 4
        assert heads_per_tile(config_of(num_kv_heads=1, seq_len=5)) == 1
        assert heads_per_tile(config_of(seq_len=1)) == 1

    @pytest.mark.parametrize(
        ("programs", "kv_seq_len", "parts"),
        [(1, 4096, 16), (1, 10**6, 132), (50, 4096, 2), (132, 4096, 1), (1, 300, 1), (0, 0, 1)],
    )
    def test_keys_are_divided_until_every_multiprocessor_has_work(
        self, programs: int, kv_seq_len: int, parts: int
    ) -> None:
        assert parts_of_keys(programs, kv_seq_len, multiprocessors=132) == parts

    def test_all_axes_lie_on_one_axis_of_the_grid(self) -> None:
        config = config_of(batch_size=70000, num_heads=8, num_kv_heads=2, seq_len=65)
        assert forward_programs(config, Tiles(64, 64, 4, 2), pack=1, parts=3) == 2 * 8 * 70000 * 3


class TestArguments:
    @pytest.mark.parametrize(
        ("mask", "axes", "expected"),
        [
            ("none", {}, (0, None, None)),
            ("causal", {}, (0, None, 0)),
            ("bottom_right", {"kv_seq_len": 100}, (36, None, 0)),
            ("top_left", {"kv_seq_len": 100}, (0, None, 0)),
            ("causal+window:8", {}, (0, 7, 0)),
            ("window:8", {}, (0, 7, 7)),
        ],
    )
    def test_what_a_query_sees_by_position(
        self, mask: str, axes: dict[str, int], expected: tuple[int | None, ...]
    ) -> None:
        assert tuple(Geometry.of(config_of(mask, **axes))) == expected

    def test_masks_are_broadcast_without_a_copy(self) -> None:
        config = config_of("padding:0.5+keep:random+bias:random")
        masks = stand_in_masks(config, device="cpu")
        operands = MaskOperands.of(config, masks)
        assert masks.keep is not None
        assert operands.keep is not None
        assert operands.keep[1:] == (0, 0, 64, 1)
        assert operands.keep.pointer.data_ptr() == masks.keep.data_ptr()
        assert operands.padding is not None
        assert (operands.padding.batch, operands.padding.column) == (64, 1)
        assert operands.present == 1
        assert MaskOperands.of(config_of(), stand_in_masks(config_of(), "cpu")).present is None


class TestTiles:
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize("head_dim", [1, 16, 64, 80, 128, 200, 256])
    @pytest.mark.parametrize("seq_len", [1, 512])
    def test_there_are_tiles_for_every_width(self, dtype: str, head_dim: int, seq_len: int) -> None:
        config = config_of(dtype=dtype, head_dim=head_dim, seq_len=seq_len)
        groups = (forward_tiles, key_gradient_tiles, query_gradient_tiles)
        for tiles in (tiles for group in groups for tiles in group(config)):
            assert tiles.queries >= 16
            assert tiles.keys >= 16
            assert NAMED[str(tiles)] == tiles

    def test_a_tile_is_as_wide_as_a_power_of_two_from_16(self) -> None:
        widths = {d: block_dim(config_of(head_dim=d)) for d in (1, 16, 17, 80, 128, 129, 256)}
        assert widths == {1: 16, 16: 16, 17: 32, 80: 128, 128: 128, 129: 256, 256: 256}

    def test_small_problems_are_not_tried_on(self) -> None:
        assert not is_worth_trying(config_of())
        assert is_worth_trying(config_of(seq_len=2048))


@needs_triton
class TestTrying:
    def timer_of(self, times: dict[str, float]) -> Callable[[Tiles], None]:
        from triton.runtime.errors import OutOfResources

        def call(tiles: Tiles) -> None:
            if str(tiles) not in times:
                raise OutOfResources(300_000, 232_448, "shared memory")
            self.taken_s = times[str(tiles)]

        return call

    def time_s(self, call: Callable[[], object]) -> float:
        call()
        return self.taken_s

    def test_the_fastest_that_fits_the_card_is_taken(self) -> None:
        candidates = [Tiles(n, 64, 4, 2) for n in (256, 128, 64, 32)]
        call = self.timer_of({"128x64w4s2": 2.0, "64x64w4s2": 1.0, "32x64w4s2": 3.0})
        assert fastest(candidates, call, self.time_s) == Tiles(64, 64, 4, 2)

    def test_a_card_that_none_fits_is_told_why(self) -> None:
        with pytest.raises(RuntimeError, match=r"no tiles fit this card: 64x64w4s2: .*300000"):
            fastest([Tiles(64, 64, 4, 2)], self.timer_of({}), self.time_s)


@needs_triton
def test_c41_the_launches_of_many_entries_have_one_axis() -> None:
    from tests.implementations.compiled_ahead import launches_of

    config = config_of(batch_size=65536, seq_len=4)
    launches = launches_of(Plan(config, stand_in_masks(config, "meta"), first_tiles(config)), True)
    assert [launch.grid for launch in launches] == [(65536 * 4,)] * 4


@needs_triton
def test_empty_problems_launch_nothing() -> None:
    from tests.implementations.compiled_ahead import launches_of

    for axes in ({"batch_size": 0}, {"seq_len": 0}, {"kv_seq_len": 0}):
        config = config_of(**axes)
        plan = Plan(config, stand_in_masks(config, "meta"), first_tiles(config))
        assert launches_of(plan, with_gradients=True) == []


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_battery_passes_on_a_card(dtype: DType) -> None:
    results = run_battery(Fused(), [dtype], device="cuda")
    assert {r.check: r.detail for r in results if r.is_failure} == {}


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_tuned_tiles_give_the_right_result_and_are_named(mode: str) -> None:
    from harness.conformance import Subject

    subject = Subject(Fused(), DType.BFLOAT16, device="cuda")
    case = subject.case(hidden_size=512, num_heads=4, seq_len=1100, mask="causal", mode=mode)
    subject.require_right(case)
    named = subject.implementation.kernel(replace(case), None)  # type: ignore[arg-type]
    assert named.startswith("fused triton ")
    assert ("dkv" in named) == (mode == "backward")


@pytest.mark.gpu
@needs_triton
def test_c43_the_last_rows_of_a_long_sequence_with_an_explicit_mask() -> None:
    from harness.conformance import Subject

    subject = Subject(Fused(), DType.BFLOAT16, device="cuda")
    for seq_len in (65536, 65537):
        subject.require_right(
            subject.case(
                num_heads=1, hidden_size=64, seq_len=64, kv_seq_len=seq_len, mask="keep:random"
            )
        )


@pytest.mark.gpu
@needs_triton
def test_offsets_beyond_31_bits_reach_the_right_numbers() -> None:
    case = on_cuda(num_heads=1, hidden_size=64, seq_len=80, batch_size=1)
    far_apart = torch.zeros(80, 2**25, dtype=torch.float16, device="cuda")  # 5 GiB
    rows = far_apart[:, :64].normal_()
    assert rows.stride(0) * 79 > 2**31
    x = rows[None, None]
    compact = x.contiguous()
    outputs = [Fused().prepare(case, AttentionInputs(each, each, each))() for each in (x, compact)]
    assert torch.equal(*outputs)


def test_nothing_of_triton_is_imported_before_a_case_asks_for_it() -> None:
    program = (
        "import sys; from implementations.fused import Fused; from harness.attention import Case; "
        "case = Case.from_dict({'hidden_size': 8, 'num_heads': 1, 'seq_len': 4, 'device':'cuda'}); "
        "Fused().unsupported_reasons(case); assert 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
