"""results/README.md names every measure of an error."""

from __future__ import annotations

import re
from pathlib import Path

from implementations.naive import Naive
from tests.judging import judged
from tests.problems import a_case

README = Path(__file__).parent.parent.parent / "results" / "README.md"


def test_every_measure_in_a_row_is_documented_and_no_other():
    section = README.read_text().partition("## Measures of an error")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (`.+?`) \|", section, flags=re.MULTILINE)
    documented = {name for line in lines for name in re.findall(r"`(\w+)`", line)}
    case = a_case(hidden_size=64, num_heads=2, seq_len=33)
    assert documented == set(judged(Naive(), case).errors["o"])
