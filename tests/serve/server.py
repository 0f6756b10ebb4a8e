"""A hybrid-serve that a test has started, and requests to it with the standard library."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

PATIENCE = 120  # seconds: a sanitizer is slow


class Server:
    """`with Server(program, model, "--flag", ...) as server:`"""

    def __init__(self, program: str, model: str, *flags: str, **variables: str):
        # Like a shell's child in the background would not be: signals have their usual effect.
        command = [program, "--model", model, "--port", "0", "--device", "cpu", "--threads", "1", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **variables})
        self.lines: list[str] = []
        self.port = 0
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if not self.ready.wait(PATIENCE) or not self.port:
            self.process.kill()
            raise RuntimeError("the server did not start: " + "".join(self.lines))

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"serving .* at http://.*:(\d+)/", line)
            if found:
                self.port = int(found.group(1))
                self.ready.set()
        self.ready.set()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            code = self.stop()
            assert code == 0, f"exit code {code}: " + self.log()[-2000:]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        return code

    def log(self) -> str:
        return "".join(self.lines)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, path: str, body=None, method: str | None = None, headers: dict | None = None):
        """(status, answer): the answer as JSON where it is JSON."""
        connection = self.connect()
        data = body if isinstance(body, (bytes, str)) or body is None else json.dumps(body)
        connection.request(method or ("GET" if body is None else "POST"), path, data, headers or {})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        is_json = response.getheader("Content-Type", "").startswith("application/json")
        return response.status, json.loads(text) if is_json else text

    def answer(self, path: str, body: dict) -> dict:
        status, answer = self.ask(path, body)
        assert status == 200, (status, answer)
        return answer

    def stream(self, path: str, body: dict) -> list[dict]:
        """The events of a stream; it must end with [DONE]."""
        connection = self.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}))
        response = connection.getresponse()
        assert response.status == 200, (response.status, response.read())
        assert response.getheader("Content-Type").startswith("text/event-stream")
        events = response.read().decode().split("\n\n")
        connection.close()
        assert events[-2:] == ["data: [DONE]", ""], events[-3:]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]

    def open_socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def begin(self, path: str, body: dict, buffer: int = 0) -> socket.socket:
        """Sends a request and returns without reading anything. buffer: bytes that wait to be read."""
        data = json.dumps(body).encode()
        it = socket.socket()
        if buffer:
            it.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        it.settimeout(PATIENCE)
        it.connect(("127.0.0.1", self.port))
        it.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
                   % (path.encode(), len(data)) + data)
        return it

    def health(self) -> dict:
        return self.ask("/health")[1]

    def wait_until(self, **state: int) -> None:
        """Until /health says so."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            now = self.health()
            if all(now[key] == value for key, value in state.items()):
                return
            time.sleep(0.02)
        raise AssertionError(f"{now}, expected {state}")

    def wait_for_line(self, words: str) -> None:
        end = time.monotonic() + PATIENCE
        while words not in self.log():
            assert time.monotonic() < end, f"no line with {words}: " + self.log()[-2000:]
            time.sleep(0.02)

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def figures(self) -> tuple[int, int]:
        """(bytes of memory, open files)"""
        with open(f"/proc/{self.process.pid}/statm") as file:
            pages = int(file.read().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{self.process.pid}/fd"))


def read_all(it: socket.socket) -> bytes:
    """What comes until the other side closes."""
    parts = []
    try:
        while part := it.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    it.close()
    return b"".join(parts)
