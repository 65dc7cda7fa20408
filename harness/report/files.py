"""A run's report as files in every format; the same run gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from harness.analysis.trend import Trend
from harness.columns import SAMPLE_COLUMNS
from harness.errors import InvalidValueError, MhaBenchError, StoreError
from harness.report import charts
from harness.report.benchmark_json import benchmark_json
from harness.report.content import Content, content_of
from harness.report.figures import time_figure
from harness.report.markdown import escaped, markdown_of, markdown_tables
from harness.report.summary import summary_of
from harness.report.trends import runs_table, trend_of, trend_sentences, trend_table

_Figure = TypeVar("_Figure", str, bytes)
Writer = Callable[[Content, Path], None]


class MissingExtraError(MhaBenchError):
    """A format needs a package that is not installed; the message says how to get it."""


def write_reports(run: Path, formats: Iterable[str], out: Path | None = None) -> list[Path]:
    """Write ``report.<format>`` for each of ``formats`` (``FORMATS``), into the run by default.

    Every format that can be written is, also when another one can't.

    Raises:
        InvalidValueError: an unknown format.
        StoreError: ``run`` is no run, or ``out`` can't be written.
        MissingExtraError: a format needs a package that is missing; raised after the others are
            written.
    """
    wanted = _known(formats, FORMATS)
    folder = Path(run) if out is None else Path(out)
    content = content_of(Path(run))
    return _written({FORMATS[n][0]: partial(FORMATS[n][1], content) for n in wanted}, folder)


def write_trend(runs: Sequence[Path], formats: Iterable[str], out: Path) -> list[Path]:
    """Write ``trend.<format>`` of several runs into ``out``, for each of ``TREND_FORMATS`` wanted.

    Raises:
        InvalidValueError: an unknown format.
        StoreError: one of them is no run, or ``out`` can't be written.
        MissingExtraError: HTML needs a package that is missing; raised after the others are
            written.
    """
    wanted = _known(formats, TREND_FORMATS)
    found = trend_of(runs)
    return _written({f"trend.{name}": partial(TREND_FORMATS[name], found) for name in wanted}, out)


def _known(formats: Iterable[str], known: Mapping[str, object]) -> list[str]:
    wanted = list(dict.fromkeys(formats))
    for name in wanted:
        if name not in known:
            raise InvalidValueError("format", "a format", name, known)
    return wanted


def _written(writers: Mapping[str, Callable[[Path], None]], folder: Path) -> list[Path]:
    """Every file that can be written is, also when another one can't."""
    written, missing = [], []
    for name, write in writers.items():
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write(path)
            written.append(path)
        except MissingExtraError as error:
            missing.append(str(error))
        except OSError as error:
            raise StoreError(f"can't write {path} ({error.strerror})") from None
    if missing:
        done = ", ".join(str(path) for path in written) or "nothing"
        raise MissingExtraError(f"{'; '.join(missing)} (written: {done})")
    return written


def _write_markdown(content: Content, path: Path) -> None:
    path.write_text(markdown_of(content), encoding="utf-8")


def flat_table(content: Content) -> pd.DataFrame:
    """One line per case and implementation: its cell, its comparison, whether it is in the best
    set.
    """
    key = ["case_key", "implementation"]
    comparisons = content.comparisons.drop(columns=["process_ratios"])
    best = {
        (case, name)
        for case, names in zip(content.winners["case_key"], content.winners["best"], strict=True)
        for name in names
    }
    flat = content.cells.merge(comparisons, on=key, how="left")
    pairs = zip(flat["case_key"], flat["implementation"], strict=True)
    return flat.assign(in_best_set=pd.array([pair in best for pair in pairs], dtype="boolean"))


def _write_csv(content: Content, path: Path) -> None:
    flat_table(content).to_csv(path, index=False, lineterminator="\n")


def _write_parquet(content: Content, path: Path) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise MissingExtraError("Parquet needs pyarrow: pip install 'mha-bench[parquet]'") from None
    rows = content.rows.copy()
    for name in SAMPLE_COLUMNS:
        rows[name] = pd.Series([_lists(value) for value in rows[name]], dtype="object")
    rows.to_parquet(path, index=False, engine="pyarrow")


def _write_html(content: Content, path: Path) -> None:
    from harness.report.page import html_of

    _write_page(lambda: html_of(content), path)


def _write_page(draw: Callable[[], str], path: Path) -> None:
    try:
        text = draw()
    except ImportError:
        raise MissingExtraError(
            "HTML needs altair and vl-convert: pip install 'mha-bench[report]'"
        ) from None
    path.write_text(text, encoding="utf-8")


def _write_trend_html(found: Trend, path: Path) -> None:
    from harness.report.trend_page import trend_html

    _write_page(lambda: trend_html(found), path)


def _write_trend_markdown(found: Trend, path: Path) -> None:
    lines = ["# mha-bench: over time", "", *(f"- {escaped(s)}" for s in trend_sentences(found)), ""]
    tables = [runs_table(found), trend_table(found)]
    path.write_text("\n".join([*lines, *markdown_tables(tables)]), encoding="utf-8")


def _write_trend_csv(found: Trend, path: Path) -> None:
    found.table.reset_index().to_csv(path, index=False, lineterminator="\n")


def _write_summary(content: Content, path: Path) -> None:
    path.write_text(summary_of(content), encoding="utf-8")


def _write_benchmark(content: Content, path: Path) -> None:
    path.write_text(benchmark_json(content), encoding="utf-8")


def _write_svg(content: Content, path: Path) -> None:
    path.write_text(_drawn(content, charts.figure_svg), encoding="utf-8")


def _write_png(content: Content, path: Path) -> None:
    path.write_bytes(_drawn(content, charts.figure_png))


def _drawn(content: Content, draw: Callable[[Mapping[str, Any]], _Figure]) -> _Figure:
    try:
        return draw(time_figure(content))
    except ImportError:
        raise MissingExtraError(
            "Figures need altair and vl-convert: pip install 'mha-bench[report]'"
        ) from None


def _lists(value: object) -> object:
    return [_lists(item) for item in value] if isinstance(value, tuple) else value


FORMATS: dict[str, tuple[str, Writer]] = {
    "html": ("report.html", _write_html),
    "md": ("report.md", _write_markdown),
    "csv": ("report.csv", _write_csv),
    "parquet": ("rows.parquet", _write_parquet),
    "svg": ("report.svg", _write_svg),
    "png": ("report.png", _write_png),
    "summary": ("summary.md", _write_summary),
    "pytest-benchmark": ("benchmark.json", _write_benchmark),
}
TREND_FORMATS: dict[str, Callable[[Trend, Path], None]] = {
    "html": _write_trend_html,
    "md": _write_trend_markdown,
    "csv": _write_trend_csv,
}
