"""What a table is: which calls it times, and what they must reach."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.attention import AttentionConfig, Case, DType, Mask
from harness.inputs.sets import make_inputs
from harness.interface import Implementation
from harness.measuring.modes import make_call
from implementations.fused import Fused
from implementations.fused.selection import Precision
from implementations.sdpa import Sdpa
from tests.benchmarks.fused.cells import Figure, ratio_of
from tests.benchmarks.fused.engine import Place, Runs

SDPA, FUSED, THREE_PRODUCTS = "sdpa", "fused", "fused_bf16x3"

_INPUT_SETS = 2


@dataclass(frozen=True)
class Choice:
    """Which part of the tables is wanted.

    Args:
        is_quick: Leaves out the long cells.
        labels: Only cells whose label has one of these in it; none: all cells.
    """

    dtypes: Sequence[str] = ("float32", "bfloat16")
    precisions: Sequence[str] = tuple(Precision)
    threads: Sequence[int] = (1, 2)
    is_quick: bool = False
    labels: Sequence[str] = ()

    def has(self, label: str) -> bool:
        """Whether a cell of this label is wanted."""
        return not self.labels or any(part in label for part in self.labels)

    def rivals(self, dtype: str, *, with_three_products: bool = True) -> dict[str, Implementation]:
        """SDPA, and ours in the chosen precisions that the dtype has."""
        found: dict[str, Implementation] = {SDPA: Sdpa()}
        if Precision.FULL in self.precisions:
            found[FUSED] = Fused()
        has_three = with_three_products and dtype == DType.FLOAT32
        if has_three and Precision.BF16X3 in self.precisions:
            found[THREE_PRODUCTS] = Fused(precision=Precision.BF16X3)
        return found


@dataclass(frozen=True)
class Aim:
    """A figure of a group of cells, and what it must reach; None: it is shown only.

    Args:
        base: Contestant whose time stands above the line.
        own: Contestant whose time stands below it.
        mean: Least geometric mean over the cells.
        least: What no cell may fall below.
        figure: Where it is not the ratio of the two times.
        words: What the figure is, where it is not that ratio.
    """

    base: str
    own: str
    mean: float | None = None
    least: float | None = None
    figure: Figure | None = None
    words: str = ""

    @property
    def name(self) -> str:
        return self.words or f"{self.base} / {self.own}"

    @property
    def logs(self) -> Figure:
        return self.figure or ratio_of(self.base, self.own)


@dataclass(frozen=True)
class Recipe:
    """A cell to be measured; ``make`` draws its inputs and leaves grad mode as the calls need it.

    Args:
        scale: See ``Cell``.
    """

    place: Place
    make: Callable[[], Mapping[str, Runs]]
    scale: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table of cells.

    Args:
        aims: By group.
        environment: Variables that torch reads when it starts: the table needs a process of its
            own with them.
    """

    name: str
    title: str
    recipes: Callable[[Choice], Iterator[Recipe]]
    aims: Callable[[str], Sequence[Aim]]
    environment: Mapping[str, str] = field(default_factory=dict)

    def is_at_home(self) -> bool:
        """Whether this process was started with the table's environment."""
        return all(os.environ.get(name) == value for name, value in self.environment.items())


def attention_case(
    num_heads: int,
    seq_len: int,
    head_dim: int,
    dtype: str,
    threads: int,
    mask: str = "none",
    kv_seq_len: int | None = None,
    **circumstances: str,
) -> Case:
    """A case of batch size 1."""
    config = AttentionConfig(
        hidden_size=num_heads * head_dim,
        num_heads=num_heads,
        seq_len=seq_len,
        kv_seq_len=kv_seq_len,  # type: ignore[arg-type]
        dtype=dtype,  # type: ignore[arg-type]
        mask=Mask.parse(mask),
    )
    return Case(config=config, threads=threads, **circumstances)  # type: ignore[arg-type]


def calls_of(case: Case, rivals: Mapping[str, Implementation]) -> dict[str, Runs]:
    """A call of each implementation on each input set."""
    input_sets = [make_inputs(case, index) for index in range(_INPUT_SETS)]
    return {
        name: tuple(make_call(rival, case, inputs).run for inputs in input_sets)
        for name, rival in rivals.items()
    }
