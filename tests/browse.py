"""Open pages of the built site in headless Chromium, at the widths of a desktop and of a phone.

``python -m tests.browse docs/_build`` fails where a page writes to the console, loads anything from
another host, is wider than its window, or has a picture that is not drawn or not described. Without
Chromium it passes with a message.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from .explain.chromium import BROWSER, FLAGS

PAGES = (
    "index.html",
    "start.html",
    "papers.html",
    "itnet.html",
    "choosing.html",
    "api.html",
    "results/performance.html",
    "gallery/index.html",
    "gallery/plot_one_equation.html",
    "gallery/plot_charges.html",
)
WIDTHS = (1280, 390)
# The page is shown in a frame of that width, since windows of Chromium have a minimum width.
FRAME = """<!doctype html><body><iframe src="{name}" style="border:0;width:{width}px;height:900px">
</iframe><script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => setTimeout(() => {{
  const page = frame.contentDocument, view = frame.contentWindow;
  const pictures = [...page.images];
  pictures.forEach(picture => picture.loading = "eager");
  const broken = pictures.filter(p => p.complete && p.naturalWidth === 0).map(p => p.src);
  const silent = pictures.filter(p => !p.hasAttribute("alt")).map(p => p.src);
  const foreign = view.performance.getEntriesByType("resource").map(e => e.name)
    .filter(name => /^https?:/.test(name));
  const wide = page.documentElement.scrollWidth - page.documentElement.clientWidth;
  const formulas = page.querySelectorAll("div.math").length;
  const frames = [...page.querySelectorAll("article iframe")];
  const drawn = frame => frame.contentDocument.querySelector(".explore:not([hidden])");
  const dead = frames.filter(frame => !drawn(frame)).length;
  const set = page.querySelectorAll("div.math mjx-container").length;
  const found = {{broken, silent, foreign, wide, formulas, set, dead}};
  document.body.dataset.found = JSON.stringify(found);
}}, 2500));
</script></body>"""


def faults(site: Path, name: str, width: int, profile: Path) -> list[str]:
    """Return the faults of one page at one width."""
    page = site / name
    frame = page.with_name(f"framed-{page.name}")
    frame.write_text(FRAME.format(name=page.name, width=width), encoding="utf-8")
    flags = [*FLAGS, "--allow-file-access-from-files", f"--user-data-dir={profile}"]
    command = [str(BROWSER), *flags, "--window-size=1400,1000", "--dump-dom", frame.as_uri()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    finally:
        frame.unlink()

    written = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    found = re.search(r'data-found="([^"]*)"', done.stdout)
    if not found:
        return [f"{name} at {width}: the page did not load"]
    facts = json.loads(html.unescape(found[1]))

    wrong = [f"console: {line}" for line in written]
    wrong += [f"picture not drawn: {source}" for source in facts["broken"]]
    wrong += [f"picture without alt: {source}" for source in facts["silent"]]
    wrong += [f"fetched from elsewhere: {address}" for address in facts["foreign"]]
    if facts["wide"] > 1:
        wrong.append(f"{facts['wide']} px wider than its window")
    if facts["dead"]:
        wrong.append(f"{facts['dead']} interactive figures do not run")
    if facts["formulas"] != facts["set"]:
        wrong.append(f"{facts['set']} of {facts['formulas']} formulas are set")
    return [f"{name} at {width}: {fault}" for fault in wrong]


def main(site: Path) -> int:
    """Check the pages of a site; return the exit status."""
    if BROWSER is None:
        print("site not opened: there is no Chromium here")
        return 0
    wrong = []
    with tempfile.TemporaryDirectory() as profile:
        for name in PAGES:
            for width in WIDTHS:
                wrong += faults(site, name, width, Path(profile))
    print(*wrong, sep="\n") if wrong else print(f"{len(PAGES)} pages opened at {WIDTHS} px")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
