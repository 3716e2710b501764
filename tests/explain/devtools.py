"""Chromium by its DevTools protocol: an unchanged page, with keyboard and mouse."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .chromium import BROWSER, FLAGS

KEYS = {"Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
KEYS |= {"ArrowDown": 40}


class Tab:
    """A page, its log, and commands that drive it."""

    def __init__(self, commands: Any, answers: Any):
        self.commands, self.answers = commands, answers
        self.number = 0
        self.session = None
        self.log = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; log messages that arrive meanwhile are stored."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {} if self.session is None else {"sessionId": self.session}
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while True:
            found = json.loads(self._next())
            if found.get("id") == self.number:
                assert "error" not in found, found
                return found["result"]
            if found.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.log.append(found["params"])

    def _next(self) -> bytes:
        parts = []
        while (byte := self.answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            parts.append(byte)
        return b"".join(parts)

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page, regardless of its policy."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, times: int = 1) -> None:
        """Press a key."""
        for _ in range(times):
            for kind in ("keyDown", "keyUp"):
                code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
                self.call("Input.dispatchKeyEvent", type=kind, **code)

    def point_at(self, selector: str, number: int) -> None:
        """Move the mouse to the middle of an element."""
        element = f"document.querySelectorAll({selector!r})[{number}]"
        self.value(f"{element}.scrollIntoView({{block: 'center'}})")
        box = self.value(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])({element}.getBoundingClientRect())"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])


@contextmanager
def opened(page: Path, folder: Path, width: int = 1100) -> Iterator[Tab]:
    """Open a page from its file, unchanged."""
    assert BROWSER is not None
    read_commands, write_commands = os.pipe()
    read_answers, write_answers = os.pipe()

    def connect() -> None:  # the browser reads descriptor 3 and writes 4
        os.dup2(read_commands, 63)
        os.dup2(write_answers, 64)
        os.dup2(63, 3)
        os.dup2(64, 4)

    flags = [flag for flag in FLAGS if not flag.startswith(("--virtual-time", "--enable-logging"))]
    command = [BROWSER, *flags, "--remote-debugging-pipe", f"--window-size={width},900"]
    command += [f"--user-data-dir={folder / 'devtools'}", "about:blank"]
    browser = subprocess.Popen(
        command, preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(read_commands)
    os.close(write_answers)
    with os.fdopen(write_commands, "wb") as commands, os.fdopen(read_answers, "rb") as answers:
        tab = Tab(commands, answers)
        try:
            target = tab.call("Target.createTarget", url="about:blank")["targetId"]
            attached = tab.call("Target.attachToTarget", targetId=target, flatten=True)
            tab.session = attached["sessionId"]
            for domain in ("Page", "Log", "Runtime"):
                tab.call(f"{domain}.enable")
            tab.call("Page.navigate", url=page.resolve().as_uri())
            while tab.value("document.readyState + location.protocol") != "completefile:":
                pass
            yield tab
        finally:
            browser.terminate()
            browser.wait(timeout=20)
