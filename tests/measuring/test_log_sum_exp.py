"""The log-sum-exp that an implementation may offer: asked for once, outside what is timed."""

from __future__ import annotations

import pytest
import torch

from harness.attention import Case
from harness.conformance.planted import Sound
from harness.errors import PluginError
from harness.inputs.sets import make_inputs
from harness.measuring.log_sum_exp import attended_with_lse
from harness.measuring.modes import make_call
from implementations.chunked import Chunked
from implementations.naive import Naive
from implementations.sdpa import SdpaFlash
from tests.problems import a_case, attention_inputs


def test_who_offers_none_has_none():
    case = a_case()
    assert attended_with_lse(Naive(), case, make_inputs(case)) == {}


@pytest.mark.parametrize("axes", [{"scope": "layer"}, {"dropout_p": 0.5, "mode": "forward_train"}])
def test_a_layer_and_dropout_have_none(axes):
    case = a_case(**axes)
    assert attended_with_lse(Chunked(), case, make_inputs(case)) == {}


@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
def test_it_comes_with_the_same_output_and_without_a_graph(mode):
    case = a_case(seq_len=9, kv_seq_len=40, mode=mode)
    inputs = make_inputs(case)
    call = make_call(Chunked(), case, inputs)
    timed = call.named_outputs(call.run())["o"]
    given = attended_with_lse(Chunked(), case, inputs)
    assert torch.equal(given["o"], timed)
    assert not given["lse"].requires_grad


def test_grouped_heads_are_expanded_for_kernels_without_them():
    class Expanding(Sound):
        native_grouped_heads = False

        def kv_heads(self, c):
            return torch.arange(c.num_heads)

    case = a_case(hidden_size=24, num_heads=6, num_kv_heads=2)
    inputs = attention_inputs(case)
    got, wanted = (attended_with_lse(kind(), case, inputs)["lse"] for kind in (Expanding, Sound))
    torch.testing.assert_close(got, wanted)


def test_something_else_than_two_tensors_is_told():
    class Lazy(Sound):
        def make_attend_with_lse(self, case, masks):
            return self.make_attend(case, masks)

    case = a_case()
    with pytest.raises(PluginError, match=r"make_attend_with_lse gave Tensor; expected output"):
        attended_with_lse(Lazy(), case, make_inputs(case))


def test_torchs_flash_kernel_offers_none_where_it_would_be_wrong():
    def offered(case: Case) -> bool:
        return "lse" in attended_with_lse(SdpaFlash(), case, make_inputs(case))

    assert offered(a_case(seq_len=5, kv_seq_len=8, mask="bottom_right"))
    assert not offered(a_case(seq_len=8, kv_seq_len=5, mask="bottom_right"))
