"""cases.py SERVER MODEL [TEST...]: what hybrid-serve answers, refuses and survives.

Each function test_* is a case. Those that need no options of their own share a server. The last line is
"N passed, N failed".
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from server import PATIENCE, Server, read_all

program, model = sys.argv[1:3]
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
LONG = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True}
shared: Server


def refused(server: Server, path: str, body, status: int, param=None, *words: str) -> None:
    found, answer = server.ask(path, body)
    assert found == status, (found, answer)
    error = answer["error"]
    assert error["param"] == param, error
    for word in words:
        assert word in error["message"], error


# ---- answers -------------------------------------------------------------------------------------------


def test_health_and_models():
    assert shared.ask("/health")[1]["status"] == "ok"
    answer = shared.ask("/v1/models")[1]
    assert answer["object"] == "list" and answer["data"][0]["id"] == "tiny", answer
    assert shared.ask("/v1/models/tiny") == (200, answer["data"][0])
    status, answer = shared.ask("/v1/models/other")
    assert status == 404 and answer["error"]["code"] == "model_not_found"


def test_a_completion_has_openais_shape():
    answer = shared.answer(TEXT, {"model": "tiny", "prompt": "Hello", "max_tokens": 5, "ignore_eos": True})
    choice = answer["choices"][0]
    assert answer["object"] == "text_completion" and answer["model"] == "tiny"
    assert choice["index"] == 0 and choice["finish_reason"] == "length" and choice["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 5


def test_a_chat_has_openais_shape():
    answer = shared.answer(CHAT, {**HELLO, "max_completion_tokens": 5})
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    assert choice["message"]["role"] == "assistant" and isinstance(choice["message"]["content"], str)


def test_the_default_is_16_tokens():
    assert shared.answer(TEXT, {"prompt": "Hello", "ignore_eos": True})["usage"]["completion_tokens"] == 16


def test_a_stream_says_the_same_as_a_whole_answer():
    for path, base in ((TEXT, {"prompt": "Hello"}), (CHAT, HELLO)):
        body = {**base, "max_tokens": 60, "seed": 7, "n": 3, "ignore_eos": True}
        whole = shared.answer(path, body)
        events = shared.stream(path, {**body, "stream_options": {"include_usage": True}})
        assert events[-1]["choices"] == [] and events[-1]["usage"] == whole["usage"], events[-1]
        assert all(event["usage"] is None for event in events[:-1])
        for number, choice in enumerate(whole["choices"]):
            parts = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == number]
            texts = [p["text"] if path == TEXT else p["delta"].get("content", "") for p in parts]
            assert "".join(texts) == (choice["text"] if path == TEXT else choice["message"]["content"])
            assert [p["finish_reason"] for p in parts] == [None] * (len(parts) - 1) + [choice["finish_reason"]]


def test_events_come_one_by_one():
    it = shared.begin(TEXT, {**LONG, "stream": True})
    first = it.recv(4096)
    assert b"200 OK" in first and shared.health()["running"] == 1
    it.close()
    shared.wait_until(running=0)


def test_the_same_seed_gives_the_same_answer():
    texts = [shared.answer(TEXT, {"prompt": "Hello", "max_tokens": 40, "seed": seed, "ignore_eos": True})
             ["choices"][0]["text"] for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]
    texts = [shared.answer(TEXT, {"prompt": "Hello", "max_tokens": 40, "temperature": 0})["choices"][0]["text"]
             for _ in range(2)]
    assert texts[0] == texts[1]


def test_lists_of_prompts_and_of_tokens():
    one = shared.answer(TEXT, {"prompt": "abc", "temperature": 0})["choices"][0]["text"]
    two = shared.answer(TEXT, {"prompt": "xy", "temperature": 0})["choices"][0]["text"]
    ids = [[ord(c) for c in text] for text in ("abc", "xy")]
    for prompt in (["abc", "xy"], ids):
        choices = shared.answer(TEXT, {"prompt": prompt, "temperature": 0})["choices"]
        assert [(c["index"], c["text"]) for c in choices] == [(0, one), (1, two)], choices
    assert shared.answer(TEXT, {"prompt": ids[0], "temperature": 0})["choices"][0]["text"] == one


def test_echo_and_logprobs():
    body = {"prompt": [97, 98, 99], "max_tokens": 4, "logprobs": 3, "echo": True, "ignore_eos": True}
    choice = shared.answer(TEXT, body)["choices"][0]
    found = choice["logprobs"]
    assert choice["text"].startswith("abc") and found["tokens"][:3] == ["a", "b", "c"], choice
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["top_logprobs"]) == 7
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    assert all(value < 0 for value in found["token_logprobs"][1:])
    for token, value, top in list(zip(found["tokens"], found["token_logprobs"], found["top_logprobs"]))[1:]:
        assert top[token] == value and 3 <= len(top) <= 4 and max(top.values()) >= value
        assert sum(math.exp(v) for v in top.values()) < 1
    assert found["text_offset"][:4] == [0, 1, 2, 3]


def test_the_token_that_ends_an_answer_is_scored_too():
    answer = shared.answer(TEXT, {"prompt": "a", "max_tokens": 3900, "logprobs": 1})
    choice = answer["choices"][0]
    found = choice["logprobs"]
    assert choice["finish_reason"] == "stop" and "\0" not in choice["text"], choice
    assert found["tokens"][-1] == "\0" and found["token_logprobs"][-1] < 0, found["tokens"][-3:]
    assert len(found["tokens"]) == len(found["top_logprobs"]) == answer["usage"]["completion_tokens"]


def test_a_prompt_is_scored_alone():
    answer = shared.answer(TEXT, {"prompt": "abcd", "max_tokens": 0, "logprobs": 1, "echo": True})
    choice = answer["choices"][0]
    assert choice["text"] == "abcd" and len(choice["logprobs"]["tokens"]) == 4
    assert answer["usage"]["completion_tokens"] == 0


def test_streamed_logprobs_are_those_of_the_whole():
    body = {"prompt": "ab", "max_tokens": 6, "logprobs": 2, "echo": True, "n": 2, "seed": 3, "ignore_eos": True}
    whole, events = shared.answer(TEXT, body), shared.stream(TEXT, body)
    for number, choice in enumerate(whole["choices"]):
        parts = [e["choices"][0] for e in events if e["choices"][0]["index"] == number]
        assert "".join(p["text"] for p in parts) == choice["text"]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert sum((p["logprobs"][key] for p in parts if p["logprobs"]), []) == choice["logprobs"][key], key


def test_chat_logprobs():
    answer = shared.answer(CHAT, {**HELLO, "max_tokens": 4, "logprobs": True, "top_logprobs": 2, "ignore_eos": True})
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == 4
    for token in content:
        assert token["logprob"] < 0 and len(token["top_logprobs"]) == 2 and len(token["bytes"]) == 1
        assert token["top_logprobs"][0]["logprob"] >= token["logprob"]


def test_stop_texts_end_an_answer():
    body = {"prompt": "Hello", "max_tokens": 60, "seed": 1, "ignore_eos": True}
    text = shared.answer(TEXT, body)["choices"][0]["text"]
    mark = next(c for c in text[5:] if c.isascii() and c.isalnum())
    for stop in (mark, ["not there", mark]):
        choice = shared.answer(TEXT, {**body, "stop": stop})["choices"][0]
        assert choice["text"] == text[:text.index(mark)] and choice["finish_reason"] == "stop", choice
    events = shared.stream(TEXT, {**body, "stop": mark})
    assert "".join(e["choices"][0]["text"] for e in events) == text[:text.index(mark)]


def test_fields_that_ask_for_nothing_are_accepted():
    shared.answer(CHAT, {**HELLO, "max_tokens": 1, "user": "me", "unknown": {"a": [1]}, "store": True, "stop": None,
                         "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "tools": None,
                         "response_format": {"type": "text"}, "tool_choice": "none", "modalities": ["text"],
                         "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1, "top_p": 0})
    shared.answer(TEXT, {"prompt": "a", "max_tokens": 1, "best_of": 1, "suffix": None, "logprobs": None})


def test_a_connection_is_used_again():
    connection = shared.connect()
    for _ in range(3):
        connection.request("POST", TEXT, json.dumps({"prompt": "a", "max_tokens": 2}))
        assert connection.getresponse().read()
        local = connection.sock.getsockname()
    assert local == connection.sock.getsockname()
    connection.close()


def test_curl_and_http_1_0():
    for version in ("--http1.1", "--http1.0"):
        for stream in ("true", "false"):
            body = '{"prompt": "a", "max_tokens": 3, "stream": %s}' % stream
            found = subprocess.run(["curl", "-sS", "--fail", version, f"http://127.0.0.1:{shared.port}{TEXT}", "-d",
                                    body], capture_output=True, text=True, timeout=PATIENCE)
            assert found.returncode == 0 and "text_completion" in found.stdout, found


# ---- refusals ------------------------------------------------------------------------------------------


def test_wrong_values_are_named_with_what_is_accepted():
    wrong = {"temperature": (-1, 101, "hot", True), "top_p": (-0.1, 1.1), "min_p": (2,), "top_k": (-2, 1.5),
             "n": (0, 129), "seed": ("a", 1.5), "stop": ("", 5, [""], ["a"] * 17, ["a\0"]), "stream": (1,),
             "max_tokens": (-1, "5"), "repetition_penalty": (0,), "stream_options": (5,), "model": (5,),
             "presence_penalty": (0.5,), "frequency_penalty": (-1,), "response_format": ({"type": "json_object"},),
             "logit_bias": ({"5": 1},), "stop_token_ids": ([5],), "min_tokens": (3,)}
    for base, path, more in (({"prompt": "a"}, TEXT, {"logprobs": (21, True), "suffix": ("x",), "best_of": (2,),
                                                       "echo": (1,), "prompt": ([], {}, 5, [1, "a"], [[]], [-1])}),
                             (HELLO, CHAT, {"logprobs": (1,), "top_logprobs": (21, 1), "messages": ([], "a"),
                                            "max_completion_tokens": (0,), "tool_choice": ("required",),
                                            "tools": (5,), "functions": ([{}],), "audio": ({"voice": "a"},),
                                            "modalities": (["audio"],)})):
        for field, values in {**wrong, **more}.items():
            for value in values:
                refused(shared, path, {**base, field: value}, 400, field, f'"{field}" is ', "accepted")


def test_what_is_no_request_is_refused():
    refused(shared, TEXT, "", 400)
    refused(shared, TEXT, "{", 400, None, "the body:1:")
    refused(shared, TEXT, "[1]", 400, None, "not a JSON object")
    refused(shared, TEXT, "[" * 100000, 400)
    refused(shared, TEXT, b'{"prompt": "\xff"}', 400)
    refused(shared, TEXT, '{"prompt": "a", "prompt": "b"}', 400)
    refused(shared, TEXT, {}, 400, "prompt", "missing")
    refused(shared, CHAT, {"prompt": "a"}, 400, "messages", "missing")
    refused(shared, TEXT, {"prompt": "a", "model": "gpt-4"}, 404, "model", "tiny")
    refused(shared, TEXT, {"prompt": "a" * 100000}, 400, "prompt")
    refused(shared, TEXT, {"prompt": [10**9]}, 400, "prompt")
    refused(shared, CHAT, {**HELLO, "tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools", "plain")
    refused(shared, CHAT, {"messages": [{"role": "nobody", "content": "a"}]}, 400, "messages")


def test_routes_and_methods():
    assert shared.ask("/v1/engines")[0] == 404
    assert shared.ask("/v1/models", {})[0] == 405
    assert shared.ask(TEXT)[0] == 405
    assert shared.ask(TEXT, method="OPTIONS")[0] == 405
    connection = shared.connect()
    connection.request("DELETE", CHAT)
    response = connection.getresponse()
    assert response.status == 405 and response.getheader("Allow") == "POST"
    assert response.getheader("Access-Control-Allow-Origin") is None
    connection.close()


def test_other_hosts_and_origins_are_refused():
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", ""):
        assert shared.ask("/v1/models", headers={"Host": host})[0] in (400, 403), host
    for host in ("localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:8000"):
        assert shared.ask("/v1/models", headers={"Host": host})[0] == 200, host
    host = f"127.0.0.1:{shared.port}"
    assert shared.ask("/v1/models", headers={"Origin": f"http://{host}"})[0] == 200
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", f"http://{host}.evil.example"):
        status, answer = shared.ask(TEXT, {"prompt": "a"}, headers={"Origin": origin})
        assert status == 403 and answer["error"]["code"] == "origin_not_allowed", origin


def test_malformed_http_harms_nobody():
    for data in (b"\0" * 100, b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
                 b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20000 + b"\r\n"):
        it = shared.open_socket()
        try:
            it.sendall(data)
            it.shutdown(1)
        except OSError:
            pass
        assert b"200 OK" not in read_all(it), data[:40]
    assert shared.ask("/health")[0] == 200


def test_the_page_needs_nothing_from_outside():
    status, page = shared.ask("/")
    text = page.decode()
    assert status == 200 and text.startswith("<!doctype html>")
    for mark in ('src="', "@import", "url(", "https://"):
        assert mark not in text, mark
    assert shared.ask("/", method="HEAD") == (200, b"")


def test_a_log_line_cannot_be_forged():
    it = shared.open_socket()
    it.sendall(b"GET /%0aforged\x1b[31m HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    read_all(it)
    assert "\x1b" not in shared.log() and "\nforged" not in shared.log()


# ---- clients that leave, or read slowly ----------------------------------------------------------------


def test_a_client_that_leaves_frees_its_place():
    for stream in (True, False):
        held = [shared.begin(TEXT, {**LONG, "n": 2, "stream": stream}) for _ in range(12)]
        while shared.health()["running"] < 4:
            time.sleep(0.01)
        for it in held:
            it.close()
        shared.wait_until(running=0, waiting=0)
    shared.wait_for_line(" left ")


def test_a_slow_reader_is_cut_off():
    with Server(program, model, "--timeout", "1") as server:
        it = server.begin(CHAT, {**HELLO, "max_tokens": 4000, "n": 8, "stream": True, "logprobs": True,
                                 "top_logprobs": 20, "ignore_eos": True})
        server.wait_until(running=8)
        server.wait_until(running=0)
        assert b"[DONE]" not in read_all(it)
        server.wait_for_line(" left ")


# One event, or one answer, that is larger than the system's buffers.
LARGE = {"prompt": "a" * 6000, "max_tokens": 0, "n": 3, "logprobs": 20, "echo": True}


def test_who_takes_a_large_answer_steadily_gets_all_of_it():
    with Server(program, model, "--timeout", "1") as server:
        for stream in (False, True):
            it = server.begin(TEXT, {**LARGE, "stream": stream}, buffer=65536)
            size, end, part = 0, b"", it.recv(65536)
            while part:
                size, end, began = size + len(part), (end + part)[-40:], time.monotonic()
                time.sleep(0.02)
                part = it.recv(65536)
            it.close()
            last = b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b"}}}"
            assert size > 6_000_000 and end.endswith(last), (size, end)


def test_a_request_must_arrive_in_time():
    with Server(program, model, "--timeout", "0.5") as server:
        for data in (b"", b"GET /hea", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"):
            it = server.open_socket()
            it.sendall(data)
            began = time.monotonic()
            assert read_all(it) == b""
            assert time.monotonic() - began > 0.3
        # a request that waits for its answer may take longer
        assert server.ask(TEXT, LONG)[0] == 200


# ---- limits --------------------------------------------------------------------------------------------


def test_a_large_body_is_refused():
    with Server(program, model, "--max-body", "1000") as server:
        assert server.ask(TEXT, {"prompt": "a" * 900, "max_tokens": 1})[0] == 200
        refused(server, TEXT, {"prompt": "a" * 1000}, 413, None, "1000 bytes")
        connection = server.connect()  # of unknown length
        connection.request("POST", TEXT, iter([b" " * 600] * 2), {"Transfer-Encoding": "chunked"},
                           encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()
        it = server.open_socket()  # asks before it sends
        it.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n"
                   b"Expect: 100-continue\r\n\r\n")
        assert b" 413 " in it.recv(4096)
        it.close()


def test_a_full_queue_is_refused_and_empties():
    with Server(program, model, "--streams", "2", "--max-waiting", "2") as server:
        held = [server.begin(TEXT, LONG) for _ in range(2)]
        server.wait_until(running=2)
        held += [server.begin(TEXT, LONG) for _ in range(2)]
        server.wait_until(waiting=2)
        connection = server.connect()
        connection.request("POST", TEXT, json.dumps({"prompt": "a"}))
        response = connection.getresponse()
        error = json.loads(response.read())["error"]
        assert response.status == 429 and response.getheader("Retry-After") == "1", response.status
        assert error["type"] == "rate_limit_error" and error["code"] == "queue_full"
        connection.close()
        refused(server, TEXT, {"prompt": ["a"] * 3}, 400, "prompt", "at most 2")
        for it in held:
            it.close()
        server.wait_until(running=0, waiting=0)
        assert server.ask(TEXT, {"prompt": ["a"] * 2, "max_tokens": 1})[0] == 200


def test_too_many_connections_are_closed():
    with Server(program, model, "--max-connections", "2", "--timeout", "1") as server:
        held = [server.open_socket() for _ in range(2)]
        assert read_all(server.open_socket()) == b""
        for it in held:
            assert read_all(it) == b""  # idle ones are cut after a second
        for _ in range(100):
            try:
                return server.wait_until(running=0)
            except ConnectionError:  # their threads still end
                time.sleep(0.05)
        raise AssertionError("no connection is accepted")


def test_a_key_is_demanded():
    with Server(program, model, HYBRID_API_KEY="secret") as server:
        assert server.ask("/health")[0] == 200 and server.ask("/")[0] == 200
        for headers in ({}, {"Authorization": "Bearer secre"}, {"Authorization": "Bearer secrets"},
                        {"Authorization": "Bearer "}, {"Authorization": "secret"}):
            for path, body in (("/v1/models", None), (TEXT, {"prompt": "a"}), ("/nope", None)):
                status, answer = server.ask(path, body, headers=headers)
                assert status == 401 and answer["error"]["code"] == "invalid_api_key", (headers, path)
        assert server.ask("/v1/models", headers={"Authorization": "Bearer secret"})[0] == 200
        assert "secret" not in server.log()


def test_other_addresses_need_a_key():
    def fails(*flags: str) -> str:
        found = subprocess.run([program, "--model", model, "--port", "0", *flags], capture_output=True, text=True,
                               timeout=PATIENCE)
        assert found.returncode == 2 and found.stdout == "" and found.stderr.count("\n") == 1, found
        return found.stderr

    assert "needs --api-key" in fails("--host", "0.0.0.0")
    assert "accepted: localhost" in fails("--host", "my.machine")
    assert "empty" in fails("--api-key", "")
    with Server(program, model, "--host", "0.0.0.0", "--api-key", "k") as server:
        found = server.ask("/v1/models", headers={"Authorization": "Bearer k", "Host": "my.machine"})
        assert found[0] == 200


def test_a_taken_port_is_named():
    found = subprocess.run([program, "--model", model, "--port", str(shared.port)], capture_output=True, text=True,
                           timeout=PATIENCE)
    assert found.returncode == 1 and f"port {shared.port}" in found.stderr, found


# ---- the end -------------------------------------------------------------------------------------------


def test_a_signal_lets_answers_finish():
    with Server(program, model) as server:
        idle = server.connect()
        idle.request("GET", "/health")
        idle.getresponse().read()
        events: list = []
        thread = threading.Thread(target=lambda: events.extend(server.stream(TEXT, LONG)))
        thread.start()
        server.wait_until(running=1)
        busy = server.begin(TEXT, {**LONG, "max_tokens": 2000})
        server.wait_until(running=2)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_line("finishing 2 requests")
        try:
            server.open_socket().close()
            raise AssertionError("a connection was accepted")
        except ConnectionRefusedError:
            pass
        assert server.wait() == 0
        thread.join()
        whole = read_all(busy)
        assert b"200 OK" in whole and b"Connection: close" in whole and b"finish_reason" in whole, whole[:300]
        assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_a_second_signal_and_the_end_of_grace_end_answers():
    for flags, signals in (((), 2), (("--grace", "0.3"), 1)):
        with Server(program, model, *flags) as server:
            # More than can be generated meanwhile: answers wait for each other.
            whole = [server.begin(TEXT, {**LONG, "n": 64}) for _ in range(4)]
            stream = server.begin(TEXT, {**LONG, "n": 64, "stream": True})
            while server.health()["running"] == 0:
                time.sleep(0.01)
            began = time.monotonic()
            for _ in range(signals):
                server.process.send_signal(signal.SIGINT)
                time.sleep(0.2)
            assert server.wait() == 0 and time.monotonic() - began < 20
            for it in whole:
                assert b" 503 " in read_all(it)
            assert b"the server is stopping" in read_all(stream)


# Eight are parsed at a time; the others wait for that.
def test_a_signal_does_not_cut_requests_that_are_being_read():
    count = 40
    with tempfile.TemporaryDirectory() as scratch:
        slow = shutil.copytree(f"{model}/model", f"{scratch}/slow")
        with open(f"{slow}/chat_template.jinja", "w") as file:
            file.write("{% if messages[0].content == 'slowly' %}{% for i in range(30000) %}{% for j in range(20) %}"
                       "{% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}")
        with Server(program, slow, "--grace", "300") as server:
            threads = server.threads()
            held = [server.begin(CHAT, {"messages": [{"role": "user", "content": "slowly"}], "max_tokens": 2})
                    for _ in range(count)]
            while server.threads() < threads + count:  # one for each connection
                time.sleep(0.01)
            time.sleep(0.2)
            server.process.send_signal(signal.SIGTERM)
            answers = [read_all(it)[:20] for it in held]
            # The last ones may have begun after the signal.
            assert all(b" 200 " in answer for answer in answers[:count // 2]), answers
            assert server.wait() == 0


def test_quiet_prints_nothing():
    process = subprocess.Popen([program, "--model", model, "--port", "0", "--device", "cpu", "--quiet"],
                               stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE)[1] == ""


# ---- running them --------------------------------------------------------------------------------------


def main() -> int:
    global shared
    failed = 0
    names = sys.argv[3:] or [name for name in globals() if name.startswith("test_")]
    shared = Server(program, model)
    for name in names:
        try:
            globals()[name]()
            print(f"ok    {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAIL  {name}\n{traceback.format_exc()}", flush=True)
    code = shared.stop() if shared.process.poll() is None else shared.process.returncode
    if code != 0:
        failed += 1
        print(f"FAIL  the shared server ended with {code}\n" + shared.log()[-4000:])
    print(f"{len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
