// page.js: talks to the server that this page came from, with OpenAI's interface.
"use strict";

const at = id => document.getElementById(id);
let model = null, messages = [], running = null; // running: the AbortController of an answer

function say(text, isAlarm) {
    at("state").textContent = text;
    at("state").className = isAlarm ? "alarm" : "";
}

function addTurn(kind, text) {
    const turn = document.createElement("div");
    turn.className = "turn " + kind;
    turn.textContent = text;
    at("log").append(turn);
    turn.scrollIntoView({block: "end"});
    return turn;
}

function headers() {
    const key = at("key").value;
    return {"Content-Type": "application/json", ...(key ? {Authorization: "Bearer " + key} : {})};
}

// The server's own words, if the response is one of its errors.
async function check(response) {
    if (response.ok) return response;
    if (response.status === 401) {
        at("key_row").hidden = false;
        document.querySelector("details").open = true;
    }
    let message = "status " + response.status;
    try { message = (await response.json()).error.message; } catch (error) { /* not JSON */ }
    throw new Error(message);
}

async function findModel() {
    const response = await check(await fetch("/v1/models", {headers: headers()}));
    model = (await response.json()).data[0];
    at("model").textContent = document.title = model.id;
    if (model.chat_template === "plain") at("kind").value = "text";
    changeKind();
}

function changeKind() {
    const isText = at("kind").value === "text";
    at("text").placeholder = isText ? "Text to continue" : "Message";
    at("send").textContent = running ? "Stop" : isText ? "Continue" : "Send";
}

function bodyOf(text) {
    const isText = at("kind").value === "text", system = at("system").value.trim();
    const body = {model: model.id, stream: true, stream_options: {include_usage: true},
        max_tokens: Number(at("max_tokens").value) || 512};
    for (const name of ["temperature", "top_p", "seed"])
        if (at(name).value !== "") body[name] = Number(at(name).value);
    if (isText) return {...body, prompt: text};
    const before = system ? [{role: "system", content: system}] : [];
    return {...body, messages: [...before, ...messages, {role: "user", content: text}]};
}

// The objects of a stream of events.
async function* events(response) {
    const reader = response.body.getReader(), decoder = new TextDecoder();
    let rest = "";
    for (;;) {
        const {done, value} = await reader.read();
        if (done) return;
        const lines = (rest + decoder.decode(value, {stream: true})).split("\n\n");
        rest = lines.pop();
        for (const line of lines) {
            const data = line.startsWith("data: ") ? line.slice(6) : "[DONE]";
            if (data !== "[DONE]") yield JSON.parse(data);
        }
    }
}

// Adds an answer to its turn; returns its figures.
async function receive(response, turn) {
    let usage = null, reason = null;
    for await (const event of events(response)) {
        if (event.error) throw new Error(event.error.message);
        const choice = event.choices[0], log = at("log");
        const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
        if (choice) turn.append(choice.text ?? choice.delta.content ?? "");
        if (choice && choice.finish_reason) reason = choice.finish_reason;
        if (event.usage) usage = event.usage;
        if (isAtEnd) log.scrollTop = log.scrollHeight;
    }
    return {usage, reason};
}

function figures(found, seconds) {
    if (!found.usage) return "";
    const tokens = found.usage.completion_tokens;
    const cut = found.reason === "length" ? ", cut at the longest answer" : "";
    return `${tokens} tokens in ${seconds.toFixed(1)} s, ${(tokens / seconds).toFixed(1)} per second${cut}`;
}

async function ask(text) {
    const isText = at("kind").value === "text", began = performance.now();
    const body = JSON.stringify(bodyOf(text));
    const question = isText ? null : addTurn("user", text);
    const turn = addTurn("assistant", isText ? text : "");
    running = new AbortController();
    changeKind();
    say("answering");
    try {
        const response = await check(await fetch(isText ? "/v1/completions" : "/v1/chat/completions",
            {method: "POST", headers: headers(), body, signal: running.signal}));
        const found = await receive(response, turn);
        say(figures(found, (performance.now() - began) / 1000));
    } catch (error) {
        const isStopped = error.name === "AbortError";
        say(isStopped ? "stopped" : error.message, !isStopped);
        if (turn.textContent === "" || turn.textContent === text) { // nothing was answered
            turn.remove();
            if (question) question.remove();
            at("text").value = text;
        }
    }
    running = null;
    changeKind();
    if (!isText && turn.isConnected)
        messages.push({role: "user", content: text}, {role: "assistant", content: turn.textContent});
}

at("form").addEventListener("submit", async event => {
    event.preventDefault();
    const text = at("text").value;
    if (running) return running.abort();
    if (text.trim() === "") return;
    try {
        if (!model) await findModel();
    } catch (error) {
        return say(error.message, true);
    }
    at("text").value = "";
    await ask(text);
    at("text").focus();
});
at("text").addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || running) return;
    event.preventDefault();
    at("form").requestSubmit();
});
at("fresh").addEventListener("click", () => {
    if (running) running.abort();
    messages = [];
    at("log").replaceChildren();
    say("");
    at("text").focus();
});
at("kind").addEventListener("change", changeKind);
findModel().catch(error => say(error.message, true));
