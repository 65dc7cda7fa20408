"""Modes: what the timed call does, by what it returns and what it leaves behind."""

import pytest
import torch

from harness.attention import AttentionConfig, Case, Mode, Scope
from harness.errors import PluginError
from harness.inputs.sets import make_inputs
from harness.measuring.modes import make_call
from tests.fakes import Right

CONFIG = AttentionConfig(hidden_size=24, num_heads=3, seq_len=5, batch_size=2)


@pytest.fixture(autouse=True)
def restore_grad_mode():
    before = torch.is_grad_enabled()
    yield
    torch.set_grad_enabled(before)


def call(mode, scope=Scope.ATTENTION, config=CONFIG):
    case = Case(config=config, mode=mode, scope=scope)
    inputs = make_inputs(case, 0)
    made = make_call(Right(), case, inputs)
    return inputs, made, made.named_outputs(made.run())


def test_forward_records_no_graph():
    _, _, outputs = call(Mode.FORWARD)
    assert set(outputs) == {"o"}
    assert not outputs["o"].requires_grad


def test_forward_train_records_a_graph():
    _, _, outputs = call(Mode.FORWARD_TRAIN)
    assert outputs["o"].requires_grad


@pytest.mark.parametrize("mode", [Mode.BACKWARD, Mode.FORWARD_BACKWARD])
def test_gradients_are_those_of_autograd(mode):
    inputs, _, outputs = call(mode)
    leaves = [t.detach().double().requires_grad_() for t in inputs.leaves.values()]
    q, k, v = leaves
    scores = (q @ k.transpose(-1, -2)) * CONFIG.scale
    expected = torch.autograd.grad(scores.softmax(-1) @ v, leaves, inputs.grad_output.double())
    for name, gradient in zip(("dq", "dk", "dv"), expected, strict=True):
        torch.testing.assert_close(outputs[name].double(), gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", [Mode.BACKWARD, Mode.FORWARD_BACKWARD])
def test_repeated_calls_accumulate_nothing(mode):
    inputs, made, first = call(mode)
    second = made.named_outputs(made.run())
    assert all(leaf.grad is None for leaf in inputs.leaves.values())
    assert torch.equal(first["dq"], second["dq"])


def test_backward_builds_its_graph_outside_the_timed_call():
    _, made, _ = call(Mode.BACKWARD)
    first, second = made.run()[0], made.run()[0]
    assert first is second
    _, made, _ = call(Mode.FORWARD_BACKWARD)
    assert made.run()[0] is not made.run()[0]


def test_a_layer_has_gradients_of_input_and_weights():
    _, _, outputs = call(Mode.FORWARD_BACKWARD, Scope.LAYER)
    assert set(outputs) == {"y", "dx", "dw_qkv", "dw_o"}
    cross = AttentionConfig(hidden_size=24, num_heads=3, seq_len=5, kv_seq_len=7)
    assert "dx_kv" in call(Mode.FORWARD_BACKWARD, Scope.LAYER, cross)[2]


class ReturnsList(Right):
    def make_attend(self, case, masks):
        return lambda q, k, v: [q]


class PreparesNothing(Right):
    def prepare(self, case, inputs):
        return None


@pytest.mark.parametrize(("wrong", "said"), [(ReturnsList, "list"), (PreparesNothing, "NoneType")])
def run_once(implementation):
    case = Case(config=CONFIG)
    made = make_call(implementation, case, make_inputs(case, 0))
    return made.named_outputs(made.run())


@pytest.mark.parametrize(("wrong", "said"), [(ReturnsList, "list"), (PreparesNothing, "NoneType")])
def test_a_plug_in_that_returns_something_else_is_told_what(wrong, said):
    with pytest.raises(PluginError, match=said):
        run_once(wrong())
