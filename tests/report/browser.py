"""A real browser without a window, for what only a browser can show."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=20000",
)


def rendered(page: Path, folder: Path, width: int = 1280, *flags: str, script: str = "") -> str:
    """The document as it stands after the page's scripts, and ``script`` after them, have run."""
    copy = folder / f"page-{width}.html"
    text = page.read_text(encoding="utf-8")
    if script:
        # One second of the browser's virtual time: charts are drawn by then.
        late = f"<script>setTimeout(async () => {{ {script} }}, 1000);</script>"
        before, _, after = text.rpartition("</body>")
        text = f"{before}{late}</body>{after}"
    copy.write_text(text, encoding="utf-8")
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, *_FLAGS, f"--user-data-dir={folder / f'profile-{width}'}",
         f"--window-size={width},900", *flags, "--dump-dom", copy.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


def attribute(document: str, name: str) -> str | None:
    """A ``data-`` attribute of the root element."""
    root = re.search(r"<html[^>]*>", document)
    found = re.search(rf'data-{name}="([^"]*)"', root[0]) if root else None
    return unescape(found[1]) if found else None
