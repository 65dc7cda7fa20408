"""Plans: what is crossed, what is left out and why, and how fast that is found."""

import shlex

import pytest

from harness.attention import Case
from harness.errors import InvalidValueError
from harness.machine import Machine
from harness.planning.plan import make_plan
from harness.planning.repro import necessary_axes
from tests.command import mha_bench, processor_time_of_children_s
from tests.composing import MACHINE, configured, planned

_ONE = ("hidden_size=64", "num_heads=2", "seq_len=8")


def test_axes_are_crossed():
    plan = planned("hidden_size=64,128", "num_heads=1,2,4", "seq_len=8,16", "mask=none,causal")
    assert len(plan.cases) == 2 * 3 * 2 * 2
    assert len(set(plan.cases)) == len(plan.cases)


def test_pairs_count_passes_and_implementations():
    plan = planned(*_ONE, "implementation=naive,sdpa", "measure.passes=4")
    assert (plan.passes, plan.pairs) == (4, 8)


def test_paired_points_are_crossed_with_the_lengths_only():
    # https://github.com/hydra-ecosystem/hydra/issues/1918
    plan = planned(
        "points=[{hidden_size:768,num_heads:12},{hidden_size:1024,num_heads:16},"
        "{hidden_size:768,num_heads:10}]",
        "seq_len=128,512",
    )
    shapes = [(c.config.hidden_size, c.config.num_heads, c.config.seq_len) for c in plan.cases]
    assert shapes == [(768, 12, 128), (768, 12, 512), (1024, 16, 128), (1024, 16, 512)]
    assert {point.axes["num_heads"] for point in plan.invalid} == {10}
    assert all("divisor of hidden_size=768" in point.reason for point in plan.invalid)


def test_models_of_equal_shape_are_one_case():
    # gpt2 and bert_base are both 768 wide with 12 heads
    assert len(planned("model=gpt2,bert_base", "seq_len=64").cases) == 1


def test_a_derived_value_and_the_same_value_given_are_one_case():
    assert len(planned(*_ONE, "num_kv_heads=[null,2]", "head_dim=[null,32]").cases) == 1


def test_threads_default_to_every_cpu_that_may_be_used():
    assert [case.threads for case in planned(*_ONE).cases] == [MACHINE.cpu_count]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["num_heads=2,3"], "num_heads: expected a divisor of hidden_size=64"),
        (["num_kv_heads=1,3"], "num_kv_heads: expected a divisor of num_heads=2"),
        (["threads=1,99"], "threads: expected at most 4"),
        (["kv_seq_len=8,16", "mask=causal"], "mask: expected a named alignment"),
        (
            ["mode=forward,forward_train", "dropout_p=0.1"],
            "dropout_p: expected 0 with mode=forward",
        ),
        (["head_dim=16,2", "min_head_dim=4"], "head_dim: expected at least min_head_dim=4, got 2"),
        (["scope=attention,layer", "inputs=shifted_keys"], "inputs: expected a distribution"),
    ],
)
def test_a_point_that_can_not_be_is_left_out_with_its_reason(words, reason):
    plan = planned(*_ONE, *words)
    assert len(plan.cases) == 1
    assert [point.reason.startswith(reason) for point in plan.invalid] == [True]


def test_a_point_that_does_not_fit_in_memory_is_left_out_with_the_figures():
    small = Machine(cpu_count=1, memory_bytes=2**20)
    plan = planned("hidden_size=64", "num_heads=2", "seq_len=8,65536", machine=small)
    assert [case.config.seq_len for case in plan.cases] == [8]
    (point,) = plan.invalid
    assert "memory: expected at most 0.0 GiB" in point.reason
    assert "GiB needed" in point.reason


def test_a_memory_limit_replaces_what_the_machine_has_free():
    plan = planned("hidden_size=64", "num_heads=2", "seq_len=8,65536", "memory_limit=1MiB")
    assert [case.config.seq_len for case in plan.cases] == [8]


def test_a_known_device_that_may_be_missing_is_planned():
    assert [case.device for case in planned(*_ONE, "device=cpu,cuda").cases] == ["cpu", "cuda"]


def test_a_sweep_with_no_possible_point_is_an_error_that_says_why():
    with pytest.raises(InvalidValueError, match="divisor of hidden_size=768") as failure:
        planned("hidden_size=768", "num_heads=10,11", "seq_len=8")
    assert failure.value.argument == "num_heads"


def test_the_estimate_grows_with_the_work_and_the_passes():
    short, long = planned(*_ONE), planned("hidden_size=64", "num_heads=2", "seq_len=4096")
    assert 0 < short.eta_s < long.eta_s
    more = [planned(*_ONE, f"measure.passes={passes}").eta_s for passes in (1, 2, 3)]
    assert more[2] - more[1] == pytest.approx(more[1] - more[0])
    assert more[0] < more[1]


def test_five_thousand_points_are_planned_without_torch_in_under_three_seconds(tmp_path):
    axes = ("hidden_size=range(64,6465,64)", "num_heads=1,2,4,8,16", "seq_len=range(1,51,5)")
    before_s = processor_time_of_children_s()
    shown = mha_bench("sweep", "--dry-run", *axes, cwd=tmp_path, python=("-X", "importtime"))
    assert processor_time_of_children_s() - before_s < 3, "plan, Hydra and imports together"
    assert shown.stdout.startswith("5,050 cases")
    assert "| torch\n" not in shown.stderr


# --- the command that repeats a cell ----------------------------------------------------------


def _repeated(command: str) -> Case:
    words = shlex.split(command)
    assert words[:2] == ["mha-bench", "sweep"]
    plan = planned(*words[2:])
    assert len(plan.cases) == len(plan.implementations) == 1
    return plan.cases[0]


@pytest.mark.parametrize(
    "words",
    [
        ["sweep=smoke"],
        ["sweep=training", "dropout_p=0.1", "mode=forward_train"],
        ["sweep=short_query"],
        ["sweep=long_context", "threads=2", "seed=7"],
        ["model=qwen3_0_6b,gemma2_9b", "scale=0.25", "dtype=bfloat16", "device=cuda"],
        ["kv_seq_len=64", "mask=top_left+window:5+padding:0.5", "cache=cold", "scope=layer"],
    ],
)
def test_the_repeating_command_gives_the_very_same_case(words):
    config = configured(*words, "implementation=naive,sdpa")
    for case in make_plan(config).cases[::7]:
        assert _repeated(config.repro_command(case, "sdpa")) == case


def test_the_repeating_command_keeps_options_presets_and_new_implementations():
    config = configured(
        *_ONE,
        "implementation=chunked",
        "+implementations.mine.target=m:M",
        "implementations.mine.options.block=64,128",
        "measure=publish",
        "measure.budget_s=3",
        "results_dir=elsewhere",
    )
    (case,) = make_plan(config).cases
    command = config.repro_command(case, "mine[block=128]")
    assert "elsewhere" not in command
    again = configured(*_split(command))
    assert again.implementations == tuple(
        spec for spec in config.implementations if spec.name == "mine[block=128]"
    )
    assert again.measure == config.measure


def test_the_repeating_command_of_one_implementation_leaves_out_the_others_options():
    config = configured(
        *_ONE, "implementation=naive,chunked", "implementations.chunked.options.key_chunk=64"
    )
    (case,) = make_plan(config).cases
    assert "chunked" not in config.repro_command(case, "naive")
    assert "key_chunk=64" in config.repro_command(case, "chunked")


def test_only_axes_that_matter_are_said():
    (case,) = planned(*_ONE).cases
    assert set(necessary_axes(case)) == {"hidden_size", "num_heads", "seq_len", "threads"}


def _split(command: str) -> list[str]:
    return shlex.split(command)[2:]
