"""storm.py SERVER MODEL SECONDS CLIENTS: many clients at once, of which many misbehave.

Each client repeats, at random: a whole answer, a stream, a stream or an answer that it leaves, a slow reader, a
malformed or huge request, a connection that it leaves idle. Every good request must be answered with what was asked
for (429 is tried again), also those of the last client; afterwards nothing runs, and memory and open files are as
after the first third. Prints figures, and "N passed, N failed".
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

from server import PATIENCE, Server

program, model, seconds, clients = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
GROWTH_MOST = 16 << 20  # bytes of memory, from the first third to the end
counts: dict[str, int] = {}
waits: list[float] = []  # seconds of good requests
answered = [0] * clients
wrong: list[str] = []


def count(what: str) -> None:
    counts[what] = counts.get(what, 0) + 1


def request(path: str, body: dict | bytes) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            % (path.encode(), len(data)) + data)


class Client:
    def __init__(self, server: Server, number: int, until: float):
        self.server, self.number, self.until = server, number, until
        self.random = random.Random(number)

    async def send(self, data: bytes):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            writer.write(data)
            await writer.drain()
        except ConnectionError:
            pass
        return reader, writer

    async def read(self, reader) -> bytes:
        parts = []
        try:
            while part := await asyncio.wait_for(reader.read(65536), PATIENCE):
                parts.append(part)
        except ConnectionError:
            pass
        return b"".join(parts)

    def body(self, stream: bool) -> tuple[str, dict]:
        body = {"max_tokens": self.random.randint(1, 60), "stream": stream, "ignore_eos": True,
                "n": self.random.choice((1, 1, 1, 2))}
        text = "a" * self.random.randint(1, 300)
        if self.random.random() < 0.5:
            return "/v1/completions", {**body, "prompt": text}
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}

    async def good(self, stream: bool) -> None:
        path, body = self.body(stream)
        began = time.monotonic()
        while True:
            reader, writer = await self.send(request(path, body))
            found = await self.read(reader)
            writer.close()
            if b" 429 " not in found[:20]:
                break
            count("answered with 429")
            await asyncio.sleep(1)
        waits.append(time.monotonic() - began)
        ends = found.count(b'"finish_reason":"length"')
        if b" 200 " not in found[:20] or ends != body["n"] or (stream and b"data: [DONE]" not in found):
            wrong.append(f"{path} {body}: {found[-400:]!r}")
        answered[self.number] += 1
        count("streams" if stream else "whole answers")

    async def leave(self) -> None:
        path, body = self.body(self.random.random() < 0.5)
        reader, writer = await self.send(request(path, {**body, "max_tokens": 2000}))
        await asyncio.sleep(self.random.random() * 0.5)
        if self.random.random() < 0.5:
            writer.transport.abort()
        else:
            writer.close()
        count("left")

    async def read_slowly(self) -> None:
        path, body = self.body(True)
        reader, writer = await self.send(request(path, {**body, "max_tokens": 300}))
        for _ in range(20):
            try:
                if not await asyncio.wait_for(reader.read(200), PATIENCE):
                    break
            except ConnectionError:
                break
            await asyncio.sleep(0.1)
        writer.transport.abort()
        count("read slowly")

    async def be_malformed(self) -> None:
        data = self.random.choice((
            self.random.randbytes(500), b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 9999, request("/v1/completions", b"{" * 999),
            request("/v1/completions", {"prompt": "a", "n": 10**9}), b"POST /v1/completions HTTP/1.1\r\nHost: localhost"
            b"\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffff\r\n", request("/v1/completions", b'{"prompt": "\xff"}')))
        reader, writer = await self.send(data)
        if writer.can_write_eof():
            try:
                writer.write_eof()
            except OSError:
                pass
        if b" 200 " in (await self.read(reader))[:20]:
            wrong.append(f"malformed, and answered: {data[:60]!r}")
        writer.close()
        count("malformed")

    async def be_huge(self) -> None:
        body = self.random.choice((b"[" + b"1," * 2_000_000 + b"1]", b" " * 5_000_000, b'{"prompt": [' + b"1," * 999_999 + b"1]}"))
        reader, writer = await self.send(request("/v1/completions", body))
        await self.read(reader)
        writer.close()
        count("huge")

    async def stay_idle(self) -> None:
        reader, writer = await self.send(self.random.choice((b"", b"GET /health HTTP/1.1\r\nHo")))
        await asyncio.sleep(self.random.random() * 3)
        writer.close()
        count("idle")

    async def run(self) -> None:
        acts = (lambda: self.good(True), lambda: self.good(False), self.leave, self.read_slowly, self.be_malformed,
                self.stay_idle, self.be_huge)
        while time.monotonic() < self.until:
            try:
                await self.random.choices(acts, (8, 8, 4, 1, 2, 1, 0.1))[0]()
            except (ConnectionError, OSError) as error:
                wrong.append(repr(error))
        await self.good(False)


async def storm(server: Server, how_long: float) -> None:
    until = time.monotonic() + how_long
    await asyncio.gather(*(Client(server, number, until).run() for number in range(clients)))


def calm(server: Server) -> tuple[int, int]:
    """Memory and open files when nothing runs any more."""
    server.wait_until(running=0, waiting=0)
    time.sleep(3)
    return server.figures()


def main() -> int:
    failures = []
    with Server(program, model) as server:
        asyncio.run(storm(server, seconds / 3))
        before = calm(server)
        asyncio.run(storm(server, seconds * 2 / 3))
        after = calm(server)
        if server.process.poll() is not None:
            failures.append("the server has ended: " + server.log()[-2000:])
    waits.sort()
    print(f"{clients} clients, {seconds:g} s: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    print(f"a good request took {waits[len(waits) // 2]:.2f} s (median), at most {waits[-1]:.2f} s; "
          f"answers per client: {min(answered)} to {max(answered)}")
    print(f"memory {before[0] / 2**20:.1f} MiB after a third, {after[0] / 2**20:.1f} MiB at the end; "
          f"open files {before[1]} and {after[1]}")
    if wrong:
        failures.append(f"{len(wrong)} wrong: " + "\n".join(wrong[:5]))
    if after[0] > before[0] + GROWTH_MOST or after[1] != before[1]:
        failures.append("memory or open files have grown")
    if min(answered) < 2:
        failures.append("a client was starved")
    for failure in failures:
        print("FAIL  " + failure)
    print(f"{3 - min(len(failures), 3)} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
