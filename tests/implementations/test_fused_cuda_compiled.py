"""The Triton kernels of ``fused`` compiled to machine code for cards that need not be there."""

from __future__ import annotations

import importlib.util

import pytest

from harness.interface import AttentionConfig, Mask
from implementations.fused.cuda.plan import Plan
from implementations.fused.cuda.tiles import TileSet
from implementations.fused.cuda.tuning import first_tiles, stand_in_masks

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="needs triton: pip install 'mha-bench[triton]'",
)

TENSOR_COPY = "cp.async.bulk.tensor"  # copies a tile by its descriptor
ON_TENSOR_CORES = {80: "mma.sync", 90: "wgmma"}  # instructions of matrix products

SMALLEST_SHARED_BYTES = 99 * 1024  # of a program, on cards from compute capability 8.0


def plan_of(
    dtype: str, head_dim: int, mask: str = "causal", parts: int = 1, by_descriptors: bool = False
) -> Plan:
    config = AttentionConfig(
        batch_size=2,
        hidden_size=8 * head_dim,
        num_heads=8,
        num_kv_heads=2,
        seq_len=1024,
        dtype=dtype,  # type: ignore[arg-type]
        mask=Mask.parse(mask),
    )
    masks = stand_in_masks(config, device="meta")
    first = first_tiles(config)
    tiles = TileSet(
        first.forward.loading(by_descriptors),
        first.key_gradients.loading(by_descriptors),
        first.query_gradients.loading(by_descriptors),
    )
    return Plan(config, masks, tiles, parts=parts)


def compiled(plan: Plan, capability: int, with_gradients: bool = True) -> dict[str, str]:
    """PTX of each launch by the kernel's name."""
    from tests.implementations.compiled_ahead import launches_of

    kernels = {x.name: x.compile(capability) for x in launches_of(plan, with_gradients)}
    assert all(kernel.asm["cubin"] for kernel in kernels.values())
    assert all(kernel.metadata.shared <= SMALLEST_SHARED_BYTES for kernel in kernels.values())
    return {name: kernel.asm["ptx"] for name, kernel in kernels.items()}


WITH_PRODUCTS = {"forward_kernel", "key_gradients_kernel", "query_gradients_kernel"}


def check_forward_and_backward(capability: int, dtype: str, head_dim: int) -> None:
    ptx = compiled(plan_of(dtype, head_dim), capability)
    assert set(ptx) == WITH_PRODUCTS | {"delta_kernel"}
    for name in WITH_PRODUCTS:
        if head_dim == 256 and name != "forward_kernel":
            continue  # tiles of 32 rows, too few for the products of sm_90
        assert ON_TENSOR_CORES[capability] in ptx[name], name


@pytest.mark.parametrize(
    ("capability", "dtype", "head_dim"),
    [(80, "bfloat16", 64), (90, "float16", 128)],
)
def test_forward_and_backward_compile_to_the_card_s_own_products(
    capability: int, dtype: str, head_dim: int
) -> None:
    check_forward_and_backward(capability, dtype, head_dim)


@pytest.mark.nightly
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_all_of_them_compile(capability: int, dtype: str, head_dim: int) -> None:
    check_forward_and_backward(capability, dtype, head_dim)


@pytest.mark.nightly
@pytest.mark.parametrize("capability", [80, 90])
def test_every_mask_and_float32_compile(capability: int) -> None:
    every_part = "causal+window:100+padding:0.5+keep:random+bias:random"
    assert compiled(plan_of("bfloat16", 64, every_part), capability)
    assert compiled(plan_of("float32", 64), capability)


@pytest.mark.parametrize("head_dim", [64, 80])
def test_by_descriptors_the_card_s_copy_engine_loads_every_loop_s_tiles(head_dim: int) -> None:
    ptx = compiled(plan_of("bfloat16", head_dim, by_descriptors=True), 90)
    assert {name for name in ptx if TENSOR_COPY in ptx[name]} == WITH_PRODUCTS
    assert all("wgmma" in ptx[name] for name in WITH_PRODUCTS)


def test_by_pointers_no_tensor_is_copied() -> None:
    ptx = compiled(plan_of("bfloat16", 64), 90, with_gradients=False)
    assert TENSOR_COPY not in ptx["forward_kernel"]


@pytest.mark.nightly
@pytest.mark.parametrize("head_dim", [128, 256])
@pytest.mark.parametrize("mask", ["none", "causal+window:100+padding:0.5+bias:random"])
def test_descriptors_compile_with_every_width_and_mask(head_dim: int, mask: str) -> None:
    ptx = compiled(plan_of("float16", head_dim, mask, by_descriptors=True), 90)
    assert {name for name in ptx if TENSOR_COPY in ptx[name]} == WITH_PRODUCTS


def test_divided_keys_compile_with_the_kernel_that_joins_them() -> None:
    ptx = compiled(plan_of("float16", 64, "none", parts=4), 90, with_gradients=False)
    assert set(ptx) == {"forward_kernel", "combine_kernel"}
