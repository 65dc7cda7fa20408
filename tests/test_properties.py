"""The properties of attention, driven by hypothesis over every implementation and the oracle."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.attention import Case, DType
from harness.conformance import CheckFailure, Subject
from harness.conformance import properties as p
from harness.conformance.planted import arithmetic, behaviour, masking
from tests.everyone import everyone, load
from tests.problems import MASK_TEXTS, configs

ANY_MASK = (p.linearity_in_values, p.convex_hull, p.independence, p.grouped_heads_are_shared)
NO_MASK = (
    p.key_permutation,
    p.key_offset,
    p.repeated_keys,
    p.one_key_attended,
    p.split_of_queries,
    p.split_of_keys,
)
DTYPES = st.sampled_from(["float32", "bfloat16", "float16"])
few = settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])


def _hold(name, properties, case, dtype):
    case = Case.from_dict({**case.to_dict(), "dtype": dtype})
    subject = Subject(load(name), DType(dtype))
    if subject.implementation.unsupported_reasons(case):
        return
    for holds in properties:
        holds(subject, case)


@everyone
@few
@given(configs(mask="none", seq_len=9), DTYPES)
def test_properties_without_a_mask(name, case, dtype):
    if case.config.kv_seq_len > 2:
        _hold(name, NO_MASK, case, dtype)


@everyone
@few
@given(configs(), DTYPES)
def test_properties_under_any_mask(name, case, dtype):
    _hold(name, ANY_MASK, case, dtype)


@everyone
@few
@given(configs(), st.sampled_from([m for m in MASK_TEXTS if "left" in m or "right" in m]), DTYPES)
def test_causality_at_any_lengths(name, case, mask, dtype):
    case = Case.from_dict({**case.to_dict(), "mask": mask})
    if case.config.seq_len:
        _hold(name, (p.causality,), case, dtype)


@pytest.mark.parametrize(
    ("kind", "holds", "axes"),
    [
        (arithmetic.DropsLastKey, p.key_permutation, {}),
        (arithmetic.DropsLastKey, p.split_of_keys, {}),
        (arithmetic.KeysForValues, p.one_key_attended, {}),
        (arithmetic.KeysForValues, p.key_offset, {}),
        (arithmetic.SumStartsAtEpsilon, p.repeated_keys, {}),
        (arithmetic.LeavesTailOfQueries, p.split_of_queries, {"seq_len": 50}),
        (arithmetic.GroupsInterleaved, p.grouped_heads_are_shared, {"num_kv_heads": 2}),
        (behaviour.FirstEntryForAll, p.independence, {"batch_size": 2}),
        (behaviour.RemembersResults, p.linearity_in_values, {}),
        (masking.SeesNextKey, p.causality, {"mask": "causal", "kv_seq_len": 40}),
    ],
)
def test_each_property_fails_for_a_defect_that_breaks_it(kind, holds, axes):
    subject = Subject(kind(), DType.FLOAT32)
    case = subject.case(**{"seq_len": 40, "kv_seq_len": 41, **axes})
    with pytest.raises(CheckFailure, match=r"got .*, expected .* within"):
        holds(subject, case)


class OutOfRange(arithmetic.Sound):
    """Outputs that no average of values can give."""

    def stored(self, output, dtype):
        return (output * 3.0).to(dtype)


def test_the_convex_hull_fails_for_what_is_no_average():
    subject = Subject(OutOfRange(), DType.FLOAT32)
    with pytest.raises(CheckFailure, match="leaves the values' range"):
        p.convex_hull(subject, subject.case(seq_len=9, kv_seq_len=1))
