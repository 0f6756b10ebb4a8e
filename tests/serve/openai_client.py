"""openai_client.py SERVER MODEL: hybrid-serve as the client of the package openai sees it.

Exit code 77: the package is missing. The last line is "N passed, N failed".
"""

from __future__ import annotations

import sys
import time
import traceback

try:
    import openai
except ImportError:
    sys.exit(77)

from server import Server

MODEL = "tiny"
MESSAGES = [{"role": "user", "content": "Hello"}]
MORE = {"ignore_eos": True}


def models(client, server):
    assert [it.id for it in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def whole_answers(client, server):
    chat = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=9, n=2, seed=1, extra_body=MORE)
    assert len(chat.choices) == 2 and chat.usage.completion_tokens == 18
    assert chat.choices[1].finish_reason == "length" and chat.choices[1].message.role == "assistant"
    text = client.completions.create(model=MODEL, prompt=[[97], [98]], max_tokens=3, extra_body=MORE)
    assert [c.index for c in text.choices] == [0, 1] and text.usage.prompt_tokens == 2


def streams_with_usage(client, server):
    same = {"model": MODEL, "messages": MESSAGES, "max_tokens": 30, "seed": 4, "extra_body": MORE}
    whole = client.chat.completions.create(**same)
    events = list(client.chat.completions.create(**same, stream=True, stream_options={"include_usage": True}))
    assert events[0].choices[0].delta.role == "assistant"
    assert "".join(e.choices[0].delta.content or "" for e in events[:-1]) == whole.choices[0].message.content
    assert events[-2].choices[0].finish_reason == "length"
    assert events[-1].choices == [] and events[-1].usage == whole.usage


def cancel(client, server):
    stream = client.completions.create(model=MODEL, prompt="a", max_tokens=3900, stream=True, extra_body=MORE)
    next(iter(stream))
    assert server.health()["running"] == 1
    stream.close()
    server.wait_until(running=0)


def logprobs(client, server):
    chat = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=5,
                                          extra_body=MORE)
    for token in chat.choices[0].logprobs.content:
        assert len(token.top_logprobs) == 5 and token.logprob <= token.top_logprobs[0].logprob
    text = client.completions.create(model=MODEL, prompt="abc", max_tokens=1, logprobs=2, echo=True, extra_body=MORE)
    found = text.choices[0].logprobs
    assert found.tokens[:3] == ["a", "b", "c"] and found.token_logprobs[0] is None and len(found.tokens) == 4


def errors(client, server):
    def fails(kind, **wrong):
        try:
            client.completions.create(**{"model": MODEL, "prompt": "a", **wrong})
        except kind as error:
            return error
        raise AssertionError(f"{wrong} was accepted")

    error = fails(openai.BadRequestError, temperature=-1)
    assert error.param == "temperature" and "accepted: numbers from 0" in error.message
    assert fails(openai.NotFoundError, model="gpt-4").code == "model_not_found"
    assert fails(openai.BadRequestError, suffix="x").param == "suffix"


def keys_and_a_full_queue(client, server):
    with Server(sys.argv[1], sys.argv[2], "--streams", "1", "--max-waiting", "1", HYBRID_API_KEY="right") as other:
        url = f"http://127.0.0.1:{other.port}/v1"
        try:
            openai.OpenAI(base_url=url, api_key="wrong").models.list()
            raise AssertionError("a wrong key was accepted")
        except openai.AuthenticationError:
            pass
        right = openai.OpenAI(base_url=url, api_key="right", max_retries=0)
        long = {"model": MODEL, "prompt": "a", "max_tokens": 3900, "extra_body": MORE}
        first = right.completions.create(**long, stream=True)
        next(iter(first))
        second = right.completions.create(**long, stream=True)
        try:
            right.completions.create(**long)
            raise AssertionError("the queue was not full")
        except openai.RateLimitError as error:
            assert error.code == "queue_full" and error.response.headers["Retry-After"] == "1"
        first.close()
        second.close()
        other.wait_until(running=0, waiting=0)
        began = time.monotonic()
        assert right.completions.create(**{**long, "max_tokens": 1}).usage.completion_tokens == 1
        assert time.monotonic() - began < 30


def main() -> int:
    cases = (models, whole_answers, streams_with_usage, cancel, logprobs, errors, keys_and_a_full_queue)
    failed = 0
    with Server(*sys.argv[1:3]) as server:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
        for case in cases:
            try:
                case(client, server)
                print(f"ok    {case.__name__}")
            except Exception:
                failed += 1
                print(f"FAIL  {case.__name__}\n{traceback.format_exc()}")
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
