"""A page in headless Chromium: its drawings and its console messages."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=5000",
]
# Written into a copy of the page: the browser's facts on each picture, and any failure.
PROBE = """<script>
addEventListener("load", () => {
  const pictures = [...document.images];
  document.body.dataset.pictures = pictures.length;
  document.body.dataset.drawn = pictures.filter(p => p.complete && p.naturalWidth > 0).length;
  document.body.dataset.requests = performance.getEntriesByType("resource").filter(e => !e.name.startsWith("data:")).length;
  document.body.dataset.overflow = document.documentElement.scrollWidth > innerWidth + 1;
});
</script></body>"""


def open_page(
    page: Path, folder: Path, *, width: int = 1100, dark: bool = False
) -> tuple[dict[str, str], list[str]]:
    """Open a page; return the probe's findings and the console messages.

    The tests of test_page check that a faulty page has such messages.
    """
    assert BROWSER is not None
    # The probe is a second script, which the policy of the page would block.
    text = re.sub(r"; script-src 'sha256-[^']*'", "", page.read_text(encoding="utf-8"))
    copy = folder / f"probed-{page.name}"
    copy.write_text(
        text.replace(
            "default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'"
        ).replace("</body>", PROBE)
    )
    command = [
        BROWSER,
        *FLAGS,
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},900",
    ]
    command += ["--blink-settings=preferredColorScheme=0"] if dark else []
    done = subprocess.run(
        [*command, "--dump-dom", copy.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    body = re.search(r"<body[^>]*>", done.stdout)
    assert body, done.stderr
    found = dict(re.findall(r'data-(\w+)="([^"]*)"', body.group()))
    return found, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
