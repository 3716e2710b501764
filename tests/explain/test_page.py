"""The report in headless Chromium: pictures are drawn, the console is silent, nothing is fetched."""

from __future__ import annotations

import pytest

from .chromium import BROWSER, open_page

pytestmark = [
    pytest.mark.chromium,
    pytest.mark.skipif(
        BROWSER is None, reason="no Chromium on this machine: apt-get install chromium"
    ),
]


@pytest.mark.parametrize(
    "view", [{}, {"width": 500}, {"dark": True}], ids=["wide", "narrow", "dark"]
)
def test_report_in_a_browser(page, tmp_path, view):
    found, console = open_page(page, tmp_path, **view)
    assert console == []
    assert int(found["pictures"]) == 13  # twelve figures, and the picture of the interactive one
    assert found["drawn"] == found["pictures"]
    assert found["requests"] == "0"
    assert found["overflow"] == "false"


def test_the_probe_sees_what_is_broken(tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text(
        """<!doctype html><meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:"><body>
        <img src="data:image/png;base64,AAAA"><img src="file:///nowhere.png"></body>"""
    )
    found, console = open_page(broken, tmp_path)
    assert (found["pictures"], found["drawn"]) == ("2", "0")
    assert any("Content Security Policy" in line for line in console)
