# chat.sh: what hybrid-chat says and how it ends.

expect_chat_error() {
    expect_code 2
    expect_empty "$stdout"
    expect_same "$(wc -l < "$stderr")" 1 "lines on standard error"
    expect_err "hybrid-chat: error: "
    for fragment in "$@"; do expect_err "$fragment"; done
    expect_nothing_written
}

test_prompt_answers_once() {
    make_model
    run_chat --model model --prompt "the " --max-tokens 20
    expect_code 0
    expect_same "$(wc -c < "$stdout" | tr -d ' ')" 21 "bytes: 20 and a new line"
    expect_empty "$stderr"
    expect_nothing_written
}

# shellcheck disable=SC2086 # the words of $tiny are arguments
test_a_run_on_rows_is_asked_as_it_was_trained() {
    for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do
        echo '{"question": "who is '$i'?", "answer": "'$((i % 2))' it is"}'
    done > who.jsonl
    "$train" $tiny --steps 300 --lr 1e-2 --data who.jsonl --sample-tokens 0 --quiet --out who ||
        fail "training failed"
    run_chat_with 'who is 3?\nwho is 8?\n' --model who --temperature 0 --max-tokens 20
    expect_code 0
    expect_same "$(grep -c ' it is$' "$stdout")" 2 "answers in the words of the rows"
    expect_same "$(wc -l < "$stderr" | tr -d ' ')" 1 "lines on standard error"
    expect_err "note: format of messages: as in training, the question and a line end"
    run_chat --model who --temperature 0 --max-tokens 20 --prompt "who is 4?" --quiet
    expect_same "$(cat "$stdout")" "0 it is" "the answer"
    expect_empty "$stderr"
    run_chat --model who --temperature 0 --max-tokens 20 --prompt "who is 4?" --chat-template plain
    expect_empty "$stderr"
}

test_same_seed_same_text() {
    make_model
    for seed in 5 5 6; do
        run_chat --model model --prompt "the " --max-tokens 24 --seed $seed
        cp "$stdout" "../text-$seed-$((count = ${count:-0} + 1))"
    done
    cmp -s ../text-5-1 ../text-5-2 || fail "the same seed gave two texts"
    ! cmp -s ../text-5-1 ../text-6-3 || fail "two seeds gave the same text"
}

test_a_checkpoint_is_a_model_too() {
    make_model
    run_chat --model model --prompt ab --max-tokens 10
    cp "$stdout" ../of-run
    run_chat --model model/checkpoint-30 --prompt ab --max-tokens 10
    expect_code 0
    cmp -s "$stdout" ../of-run || fail "run and checkpoint answer differently"
}

test_temperature_0_does_not_draw() {
    make_model
    run_chat --model model --prompt ab --max-tokens 10 --temperature 0 --seed 1
    cp "$stdout" ../one
    run_chat --model model --prompt ab --max-tokens 10 --temperature 0 --seed 2
    cmp -s "$stdout" ../one || fail "it depends on the seed"
    run_chat --model model --prompt ab --max-tokens 10 --top-k 1 --seed 3
    cmp -s "$stdout" ../one || fail "top-k 1 is not the likeliest"
}

test_every_line_is_answered() {
    make_model
    run_chat_with 'ab\ncd\n' --model model --max-tokens 4 --quiet
    expect_code 0
    expect_empty "$stderr"
    expect_same "$(wc -c < "$stdout" | tr -d ' ')" 10 "bytes: two answers of 4"
}

test_reset_forgets_the_conversation() {
    make_model
    run_chat_with 'ab\n/reset\nab\n' --model model --max-tokens 8 --temperature 0
    expect_code 0
    expect_same "$(head -c 9 "$stdout")" "$(tail -c 9 "$stdout")" "answers"
}

test_commands_are_obeyed() {
    make_model
    run_chat_with '/help\n/exit\nab\n' --model model
    expect_code 0
    expect_out "/reset"
    expect_same "$(grep -c 'tokens' "$stdout")" 0 "answers after /exit"
}

test_unknown_commands_end_a_chat_without_a_terminal() {
    make_model
    run_chat_with '/nonsense\nab\n' --model model
    expect_code 2
    expect_err "error: unknown command /nonsense; the commands are /reset, /adapter, /help and /exit"
    expect_empty "$stdout"
    run_chat_with '/adapter zz\nab\n' --model model
    expect_code 2
    expect_err "error: no adapters are loaded"
    expect_empty "$stdout"
}

test_a_conversation_from_a_file_is_answered() {
    make_model
    echo "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}" > model/model/chat_template.jinja
    echo '[{"role": "user", "content": [{"type": "text", "text": "ab"}]}, {"role": "tool", "content": "4"}]' \
        > talk.json
    run_chat --model model/model --messages talk.json --max-tokens 8 --temperature 0
    expect_code 0
    cp "$stdout" ../from_messages
    echo "<user>ab<tool>4{% if messages | length != 1 %}?{% endif %}" > model/model/chat_template.jinja
    run_chat --model model/model --prompt ab --max-tokens 8 --temperature 0
    expect_code 0
    cmp -s "$stdout" ../from_messages || fail "the file's conversation has another answer than its text"
    run_chat --model model/model --messages talk.json --prompt x
    expect_code 0
    echo "{{ raise_exception('no tools here') }}" > model/model/chat_template.jinja
    run_chat --model model/model --messages talk.json
    expect_chat_error "line 1: the template raised an exception: no tools here"
    echo '[{"role": "assistant", "content": "A"}]' > talk.json
    run_chat --model model/model --messages talk.json
    expect_chat_error "the last message is the assistant's: add a user message first"
    echo '[{"role": "ghost", "content": "A"}]' > talk.json
    run_chat --model model/model --messages talk.json
    expect_chat_error 'unknown role "ghost"; expected system, user, assistant or tool'
    run_chat --model model/model --messages nowhere.json
    expect_chat_error "cannot read nowhere.json: No such file or directory"
    run_chat --model model/model --messages talk.json --system x
    expect_chat_error "--system cannot be used with --messages"
}

test_a_template_that_cannot_be_rendered_is_reported() {
    make_model
    printf 'a\n{%% include "x" %%}\n' > model/model/chat_template.jinja
    run_chat --model model/model --prompt ab --max-tokens 4
    expect_code 0
    expect_err "the chat template, line 2: {% include %} is not supported; messages are joined without a template"
}

test_a_long_message_is_reported() {
    make_model
    run_chat --model model --context 32 --prompt "$(printf '%064d' 0)"
    expect_chat_error "64 tokens" "context of 32"
}

test_an_interrupt_ends_waiting() {
    make_model
    (sleep 20 & wait) | "$chat" --model model --device cpu --quiet > "$stdout" 2> "$stderr" &
    sleep 3
    kill -INT $! 2> ../kill
    wait $!
    expect_same "$?" 75 "exit code"
}

test_a_model_of_another_tool_generates_its_story() {
    stories=${HYBRID_DATA:-$here/../../../shared/data}/weights/stories260K
    [ -d "$stories" ] || skip "no weights/stories260K in HYBRID_DATA or ../shared/data"
    run_chat --model "$stories" --prompt "" --temperature 0 --max-tokens 40
    expect_code 0
    expect_out "Once upon a time, there was a little girl named Lily"
    expect_empty "$stderr"
}

test_wrong_usage() {
    run_chat
    expect_chat_error "no run found: there is no folder runs/"
    run_chat --modle x
    expect_chat_error "unknown flag --modle; did you mean --model?"
    run_chat x
    expect_chat_error 'unexpected argument "x"'
    run_chat --model
    expect_chat_error "--model needs a value"
    run_chat --model m --top-p 1.5
    expect_chat_error '--top-p is "1.5"; accepted: numbers from 0 to 1'
    run_chat --model m --max-tokens few
    expect_chat_error '--max-tokens is "few"; accepted: whole numbers'
    run_chat --model nowhere
    expect_chat_error "nowhere"
    run_chat --model nano --prompt x
    expect_chat_error "nano is a shape without weights"
    run_chat --quiet=yes
    expect_chat_error "--quiet takes no value"
}

test_wrong_settings_are_named() {
    make_model
    run_chat --model model --context 100000 --prompt x
    expect_chat_error "accepted: 1 to 512"
    run_chat --model model --chat-template jinja --prompt x
    expect_chat_error "jinja" "chatml"
    run_chat --model model --tokenizer nofile.json --prompt x
    expect_chat_error "nofile.json"
    run_chat --model model --device gpu --prompt x
    expect_chat_error "device"
}

test_help_and_version() {
    run_chat --help
    expect_code 0
    for words in "hybrid-chat --model" "--prompt" "--temperature" "/reset" "Exit codes"; do
        expect_out "$words"
    done
    expect_same "$(awk 'length > 80' "$stdout" | wc -l | tr -d ' ')" 0 "lines longer than 80"
    run_chat --version
    expect_code 0
    expect_out "hybrid-chat "
}

test_lines_are_edited_on_a_terminal() {
    command -v script > /dev/null || skip "no script(1)"
    ldconfig -p 2> /dev/null | grep -q "libedit.so.2" || skip "no libedit"
    make_model
    # A wrong letter is removed in the middle of the line; the up key brings the line back.
    (sleep 0.7; printf '/hxlp\002\002\177e\r'; sleep 0.2; printf '\033[A\r'; sleep 0.2; printf '\004') |
        TERM=xterm script -qec "$chat --model model" /dev/null > "$stdout"
    expect_same "$(grep -c 'start a new conversation' "$stdout")" 2 "times /help was obeyed"
}

# Whatever the locale is: models read UTF-8.
test_lines_on_a_terminal_keep_every_character() {
    command -v script > /dev/null || skip "no script(1)"
    ldconfig -p 2> /dev/null | grep -q "libedit.so.2" || skip "no libedit"
    make_model
    for locale in C C.UTF-8; do
        (sleep 0.7; printf '/n\303\266such \346\227\245\r'; sleep 0.2; printf '\004') |
            LC_ALL=$locale TERM=xterm script -qec "$chat --model model" /dev/null > "$stdout"
        expect_out "$(printf 'unknown command /n\303\266such \346\227\245')"
    done
}

# The second line of a message is not typed to its end: the first is not sent either.
test_an_interrupted_message_is_not_sent() {
    command -v script > /dev/null || skip "no script(1)"
    ldconfig -p 2> /dev/null | grep -q "libedit.so.2" || skip "no libedit"
    make_model
    (sleep 0.7; printf 'hello\\\r'; sleep 0.3; printf '\003'; sleep 0.3; printf '\004') |
        TERM=xterm script -qec "$chat --model model" /dev/null > "$stdout"
    expect_out "Ctrl-D or /exit ends"
    expect_same "$(grep -c 'a second' "$stdout")" 0 "answers"
}
