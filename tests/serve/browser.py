"""browser.py SERVER MODEL CHROMIUM [FOLDER]: the page of hybrid-serve in a browser without a window.

At the widths of a phone and of a screen, in light and dark: nothing is wider than the window, nothing is fetched from
elsewhere, nothing is logged as an error; a person asks, reads the answer as it comes, stops one, begins anew, and
continues a text. FOLDER receives pictures. Speaks Chromium's DevTools protocol with the standard library. The last
line is "N passed, N failed".
"""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from pathlib import Path

from server import PATIENCE, Server


class Page:
    """A tab, over a WebSocket."""

    def __init__(self, url: str):
        host, port = url.removeprefix("ws://").split("/", 1)[0].split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self.socket.sendall(f"GET /{url.removeprefix('ws://').split('/', 1)[1]} HTTP/1.1\r\nHost: {host}:{port}\r\n"
                            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n\r\n".encode())
        self.file = self.socket.makefile("rb")
        while self.file.readline() not in (b"\r\n", b""):
            pass
        self.events: list[dict] = []
        self.count = 0

    def _receive(self) -> dict:
        parts = b""
        while True:
            first, second = self.file.read(2)
            size = second & 127
            if size > 125:
                size = struct.unpack(">H" if size == 126 else ">Q", self.file.read(2 if size == 126 else 8))[0]
            parts += self.file.read(size)
            if first & 128:
                return json.loads(parts)

    def call(self, method: str, **parameters):
        self.count += 1
        data = json.dumps({"id": self.count, "method": method, "params": parameters}).encode()
        head = struct.pack(">BBH", 129, 128 | 126, len(data)) if len(data) < 65536 else None
        assert head, "a longer message is not needed"
        self.socket.sendall(head + b"\0\0\0\0" + data)
        while True:
            message = self._receive()
            if message.get("id") == self.count:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def run(self, script: str):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, script: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      **({"text": "\r"} if kind == "keyDown" else {}))


def picture(page: Page, name: str) -> None:
    if len(sys.argv) > 4:
        data = page.call("Page.captureScreenshot", format="png")["data"]
        Path(sys.argv[4], name + ".png").write_bytes(base64.b64decode(data))


def talk(page: Page, server: Server, width: int, scheme: str) -> None:
    page.events.clear()
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
    page.wait_for("document.title === 'tiny'")
    fits = "document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight"
    assert page.run(fits)
    page.run("document.getElementById('kind').value = 'chat'; document.querySelector('details').open = true;"
             "document.getElementById('max_tokens').value = 40; document.getElementById('text').focus()")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    page.run("document.querySelector('details').open = false")
    page.call("Input.insertText", text="Hello <b>you</b>")
    page.press("Enter", 13)
    page.wait_for("/tokens in/.test(document.getElementById('state').textContent)")
    turns = page.run("[...document.querySelectorAll('.turn')].map(it => it.textContent)")
    assert turns[0] == "Hello <b>you</b>" and len(turns) == 2 and turns[1], turns
    picture(page, f"chat-{width}-{scheme}")
    # An answer that is stopped when its first text is there.
    page.run("document.getElementById('max_tokens').value = 3000; document.getElementById('text').focus();"
             "new MutationObserver((_, it) => { const turns = document.querySelectorAll('.turn');"
             "if (turns.length === 4 && turns[3].textContent) { it.disconnect();"
             "document.getElementById('send').click(); } })"
             ".observe(document.getElementById('log'), {childList: true, subtree: true, characterData: true})")
    page.call("Input.insertText", text="word " * 40)
    page.press("Enter", 13)
    page.wait_for("document.getElementById('state').textContent === 'stopped'")
    server.wait_until(running=0)
    assert page.run(fits)
    # An error of the server.
    page.run("document.getElementById('temperature').value = 1000; document.getElementById('text').focus()")
    page.call("Input.insertText", text="a")
    page.press("Enter", 13)
    page.wait_for("/accepted/.test(document.getElementById('state').textContent)")
    # A text to continue.
    page.run("document.getElementById('fresh').click(); document.getElementById('temperature').value = 1;"
             "document.getElementById('max_tokens').value = 20;"
             "document.getElementById('kind').value = 'text'; document.getElementById('text').value = 'Once';"
             "document.getElementById('form').requestSubmit()")
    page.wait_for("/tokens in/.test(document.getElementById('state').textContent)")
    assert page.run("document.querySelector('.turn').textContent").startswith("Once")
    picture(page, f"text-{width}-{scheme}")
    for event in page.events:
        if event["method"] == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            assert url.startswith((f"http://127.0.0.1:{server.port}/", "data:")), url
        if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded"):
            entry = json.dumps(event["params"])
            assert "400 (Bad Request)" in entry, entry  # the error that was asked for


def open_browser(folder: str):
    process = subprocess.Popen([sys.argv[3], "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                                "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file, end = Path(folder, "DevToolsActivePort"), time.monotonic() + PATIENCE
    while not (file.exists() and file.read_text().count("\n") >= 1):
        assert time.monotonic() < end and process.poll() is None, "the browser did not start"
        time.sleep(0.1)
    with urllib.request.urlopen(f"http://127.0.0.1:{file.read_text().split()[0]}/json") as answer:
        tab = next(it for it in json.load(answer) if it["type"] == "page")
    return process, Page(tab["webSocketDebuggerUrl"])


def main() -> int:
    failed, cases = 0, [(width, scheme) for width in (380, 1280) for scheme in ("light", "dark")]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Server(*sys.argv[1:3]) as server:
        process, page = open_browser(folder)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(domain + ".enable")
        for case in cases:
            try:
                talk(page, server, *case)
                print(f"ok    {case}")
            except Exception:
                failed += 1
                print(f"FAIL  {case}\n{traceback.format_exc()}")
        process.terminate()
        process.wait(PATIENCE)
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
