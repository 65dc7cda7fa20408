"""From the command line's words to a checked configuration, through Hydra and the real conf/."""

from dataclasses import fields
from pathlib import Path

import pytest

from harness.cli.groups import conf_dir, group_options
from harness.errors import InvalidValueError
from harness.planning.axes import AXES
from harness.planning.config_schema import MeasureSchema
from harness.rows import Status
from harness.settings import ImplementationSpec, MeasureSettings
from tests.composing import configured, planned


def test_every_measuring_setting_has_its_place_in_the_schema():
    assert [f.name for f in fields(MeasureSchema)] == [f.name for f in fields(MeasureSettings)]


@pytest.mark.parametrize("measure", group_options("measure"))
def test_every_measuring_preset_is_complete(measure):
    assert isinstance(configured(f"measure={measure}").measure, MeasureSettings)


@pytest.mark.parametrize("sweep", group_options("sweep"))
def test_every_named_sweep_has_a_plan(sweep):
    assert planned(f"sweep={sweep}").pairs > 0


@pytest.mark.parametrize("model", group_options("model"))
def test_every_named_model_is_one_shape_with_whole_groups_of_heads(model):
    cases = planned(f"model={model}", "seq_len=64").cases
    assert len(cases) == 1
    assert cases[0].config.group_size >= 1


def test_every_named_model_says_where_its_shape_comes_from():
    for path in (conf_dir() / "model").glob("*.yaml"):
        text = path.read_text()
        assert "arXiv:" in text or "huggingface.co/" in text, path


def test_a_model_with_wide_heads_keeps_its_head_dim():
    (case,) = planned("model=qwen3_0_6b", "seq_len=64").cases
    assert (case.config.hidden_size, case.config.num_heads, case.config.head_dim) == (1024, 16, 128)


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("seq_len=512", (512,)),
        ("seq_len=128,512", (128, 512)),
        ("seq_len=[128,512]", (128, 512)),
        ("seq_len=range(128,513,128)", (128, 256, 384, 512)),
        ("seq_len=choice(128,512)", (128, 512)),
        ("seq_len=512,128,512", (512, 128)),
    ],
)
def test_an_axis_takes_one_value_a_list_a_range_or_a_choice(word, values):
    assert configured(word).axes["seq_len"] == values


def test_masks_with_colons_and_pluses_need_no_quotes():
    axes = configured("mask=none,bottom_right+window:256+padding:0.5").axes
    assert axes["mask"] == ("none", "bottom_right+window:256+padding:0.5")


def test_every_axis_has_a_value_without_any_word():
    axes = configured().axes
    assert set(axes) == set(AXES)
    assert all(axes.values())


def test_implementations_come_in_the_order_given():
    config = configured("implementation=sdpa,naive")
    assert [spec.name for spec in config.implementations] == ["sdpa", "naive"]


@pytest.mark.parametrize(
    ("chosen", "baseline"),
    [
        ("chunked,naive,sdpa", "sdpa"),
        ("chunked,naive", "naive"),
        ("fused,chunked", "fused"),
        ("all", "sdpa"),
    ],
)
def test_the_baseline_is_what_one_would_use_otherwise(chosen, baseline):
    assert configured(f"implementation={chosen}").baseline == baseline


def test_a_baseline_by_name_is_that_one():
    assert configured("implementation=sdpa,naive", "baseline=naive").baseline == "naive"


def test_one_implementation_needs_no_brackets():
    assert [spec.name for spec in configured("implementation=naive").implementations] == ["naive"]


def test_all_means_every_implementation_once():
    named = [spec.name for spec in configured("implementation=[sdpa,all]").implementations]
    assert named[0] == "sdpa"
    assert sorted(named) == group_options("implementation")


def test_a_glob_chooses_by_name():
    named = [spec.name for spec in configured("implementation=glob(sdpa_*)").implementations]
    assert named == [name for name in group_options("implementation") if name.startswith("sdpa_")]


def test_a_target_on_the_command_line_joins_the_chosen_implementations():
    config = configured("implementation=naive", "+implementations.mine.target=my_kernel:Mine")
    assert config.implementations[-1] == ImplementationSpec("mine", "my_kernel:Mine", {})


def test_a_list_of_an_option_makes_variants_and_one_value_does_not():
    config = configured(
        "implementation=chunked",
        "implementations.chunked.options.query_chunk=64,128",
        "implementations.chunked.options.key_chunk=256",
    )
    names = {spec.name: dict(spec.options) for spec in config.implementations}
    assert names == {
        "chunked[query_chunk=64]": {"query_chunk": 64, "key_chunk": 256},
        "chunked[query_chunk=128]": {"query_chunk": 128, "key_chunk": 256},
    }


def test_an_option_that_no_file_mentions_reaches_the_implementation():
    config = configured(
        "implementation=[]",
        "+implementations.mine.target=m:M",
        "implementations.mine.options.block=64,128",
    )
    assert [spec.name for spec in config.implementations] == ["mine[block=64]", "mine[block=128]"]


def test_a_folder_of_the_user_adds_implementations_sweeps_and_models(tmp_path):
    for group, name, text in (
        ("implementation", "mine", "# @package implementations.mine\ntarget: my_kernel:Mine\n"),
        ("sweep", "tiny", "# @package _global_\nhidden_size: 64\nnum_heads: 2\nseq_len: 8\n"),
    ):
        (tmp_path / group).mkdir()
        (tmp_path / group / f"{name}.yaml").write_text(text)
    words = ("--config-dir", str(tmp_path), "sweep=tiny")
    assert configured(*words, "implementation=mine").implementations[0].target == "my_kernel:Mine"
    every = configured(*words, "implementation=all").implementations
    assert "mine" in [spec.name for spec in every]


def test_an_installed_plug_in_is_chosen_like_any_other(tmp_path, monkeypatch):
    info = tmp_path / "their_kernels-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their_kernels\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mha_bench.implementations]\ntheirs = their:Kernel\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "theirs" in group_options("implementation")
    config = configured("implementation=naive,theirs")
    assert config.implementations[1] == ImplementationSpec("theirs", "their:Kernel", {})


def test_durations_and_sizes_have_units():
    config = configured("budget=2m", "memory_limit=8GiB")
    assert (config.budget_s, config.memory_limit_bytes) == (120.0, 8 * 2**30)


def test_a_failing_status_is_named():
    assert configured("fail_on=timeout").fail_on == (Status.TIMEOUT,)


def test_relative_results_stay_relative_to_the_caller():
    assert configured("results_dir=elsewhere").results_dir == Path("elsewhere")


@pytest.mark.parametrize(
    ("words", "argument"),
    [
        (["implementation=[]"], "implementation"),
        (["baseline=other"], "baseline"),
        (["fail_on=[nothing]"], "fail_on"),
        (["budget=soon"], "budget"),
        (["memory_limit=-1"], "memory_limit"),
        (["name=a/b"], "name"),
        (["name=.."], "name"),
        (["measure.passes=0"], "measure.passes"),
        (["measure.budget_s=-1"], "measure.budget_s"),
        (["points=[{hidden:768}]"], "points[0]"),
        (["model=bert_base", "hidden_size=1024"], "hidden_size"),
        (["measure=smoke,standard"], "measure"),
        (["seq_len=interval(1,2)"], "seq_len"),
        (["implementation=spda"], "implementation"),
        (["model=bert"], "model"),
        (["+implementations.mine.taget=m:M"], "implementations.mine"),
        (["implementations.mine.options.block=1"], "implementations.mine"),
    ],
)
def test_a_wrong_word_is_refused_by_its_name(words, argument):
    with pytest.raises(InvalidValueError) as failure:
        configured(*words)
    assert failure.value.argument == argument


def test_a_fixed_axis_of_models_may_still_be_swept_by_the_sweep_itself():
    shapes = {case.config.hidden_size for case in planned("model=bert_base").cases}
    assert shapes == {768}
