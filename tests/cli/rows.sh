# rows.sh: data of every kind: rows, packed files, standard input; what is read, told and refused.

rows() { # COUNT: sums, one a line
    i=0
    while [ $i -lt "$1" ]; do
        echo "{\"question\": \"$((i % 9))+$((i % 5))?\", \"answer\": \"$((i % 9 + i % 5))\"}"
        i=$((i + 1))
    done
}

test_rows_are_trained_on_and_their_count_is_printed() {
    rows 40 > sums.jsonl
    run_tiny --data sums.jsonl --out out
    expect_code 0
    expect_out "packed into"
    expect_file out/summary.json
}

test_malformed_rows_are_reported_and_skipped() {
    { rows 20; echo '{"question": "cut off'; echo '{"question": "no answer"}'; rows 20; } > sums.jsonl
    run_tiny --data sums.jsonl --out out
    expect_code 0
    expect_err "sums.jsonl:21: "
    expect_err 'sums.jsonl:22: "answer" is missing'
    expect_err 'dropped 2 of 42 rows (1: '
    grep -q '"rows_dropped": 2' out/summary.json || fail "summary.json does not count dropped rows"
    grep -q '1: &quot;answer&quot; is missing' out/report.html || fail "the report names no reason"
}

test_more_than_half_of_the_rows_dropped_is_an_error() {
    { rows 20; for _ in $(seq 21); do echo '{"question": "no answer"}'; done; } > sums.jsonl
    run_tiny --data sums.jsonl --out out
    expect_refusal "dropped 21 of 41 rows" '"answer" is missing' "skip-any"
    run_tiny --data sums.jsonl --bad-rows skip-any --out out
    expect_code 0
    expect_err "dropped 21 of 41 rows, more than a tenth"
}

test_columns_map_names() {
    rows 40 | sed 's/"question"/"Frage"/; s/"answer"/"Antwort"/' > sums.jsonl
    run_tiny --data sums.jsonl --out out
    expect_refusal "Frage" "--columns"
    run_tiny --data sums.jsonl --columns question=Frage,answer=Antwort --out out
    expect_code 0
    expect_out "question and answer; no chat template; loss on answers"
    run_tiny --data sums.jsonl --columns frage=question --out out --overwrite
    expect_refusal "frage=question" "prompt, completion"
}

test_malformed_rows_stop_the_program_when_asked() {
    { rows 20; echo '{"question": "cut off'; } > sums.jsonl
    run_tiny --data sums.jsonl --bad-rows stop --out out
    expect_refusal "sums.jsonl:21"
}

test_rows_of_an_unknown_kind_are_refused() {
    echo '{"left": 1, "right": 2}' > odd.jsonl
    run_tiny --data odd.jsonl --out out
    expect_refusal "odd.jsonl:1" "left, right" "messages"
}

test_conversations_need_a_template() {
    echo '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}' > c.jsonl
    run_tiny --data c.jsonl --out out
    expect_refusal "c.jsonl" "choose one with --chat-template: alpaca, lines, plain"
}

test_a_mixture_names_the_part_that_is_wrong() {
    rows 40 > sums.jsonl
    run_tiny --data sums.jsonl:2,nowhere.jsonl:1 --out out
    expect_refusal "nowhere.jsonl"
    run_tiny --data sums.jsonl:0,sums.jsonl:1 --out out
    expect_refusal "weight" "sums.jsonl:0"
}

test_a_mixture_with_weights_runs() {
    rows 40 > sums.jsonl
    rows 10 > few.jsonl
    run_tiny --data sums.jsonl:2,few.jsonl:1 --out out
    expect_code 0
    expect_out "2 paths"
}

test_packed_files_csv_and_standard_input_train_as_the_plain_file_does() {
    rows 40 > sums.jsonl
    gzip -k sums.jsonl
    sed 's/{"question": //; s/ "answer": //; s/}$//; 1i question,answer' sums.jsonl > sums.csv
    run_tiny --data sums.jsonl --out plain
    expect_code 0
    for data in sums.jsonl.gz sums.csv; do
        run_tiny --data $data --out "$data.run"
        expect_code 0
        expect_same "$(losses "$data.run")" "$(losses plain)" "losses of $data"
    done
    mkfifo pipe
    cat sums.jsonl.gz > pipe &
    input=pipe
    run_tiny --data - --out piped
    expect_code 0
    expect_same "$(losses piped)" "$(losses plain)" "losses of standard input"
}

test_a_run_on_standard_input_goes_on_with_the_same_data_and_no_other() {
    rows 40 > sums.jsonl
    run_tiny --data sums.jsonl --steps 12 --out whole
    input=sums.jsonl
    run_tiny --data - --steps 12 --save-every 6 --out out
    expect_code 0
    rm -rf out/checkpoint-12
    run --resume out --quiet
    expect_code 0
    expect_same "$(losses out)" "$(losses whole)" "losses"
    rows 41 > more.jsonl
    input=more.jsonl
    run --resume out --steps 20
    expect_code 2
    expect_err "the number of training tokens was"
    input=/dev/null
    run --resume out --steps 20
    expect_code 2
    expect_err "is empty"
}

test_several_paths_of_data_come_together_and_other_flags_say_which_counts() {
    rows 40 > sums.jsonl
    rows 10 > few.jsonl
    run_tiny --data sums.jsonl,few.jsonl --out commas
    run_tiny --data sums.jsonl --data few.jsonl --out twice
    expect_code 0
    expect_same "$(losses twice)" "$(losses commas)" "losses"
    run_tiny --seed 7 --seed 8 --print-config
    expect_code 0
    expect_err "--seed is given more than once; using 8 instead of 7"
    expect_out "seed = 8;"
}

test_what_is_not_text_is_refused_unless_its_bytes_are_wanted() {
    run_tiny --data "$program" --out out
    expect_refusal "is a program (ELF)" "--data-format bytes"
    run_tiny --data "$program" --data-format bytes --val-fraction 0.0001 --out out
    expect_code 0
    printf 'PAR1xx' > a.parquet
    run_tiny --data a.parquet --out out2
    expect_refusal "a.parquet is a Parquet file" "pyarrow.parquet"
}

# The line in the message is pasted, with a module that stands for pyarrow. Python's NaN, dates and
# bytes must become rows that are read.
test_the_line_that_converts_parquet_works() {
    command -v python3 > /dev/null || skip "no python3"
    mkdir -p fake/pyarrow
    : > fake/pyarrow/__init__.py
    cat > fake/pyarrow/parquet.py << 'EOF'
import datetime
class Batch:
    def to_pylist(self):
        return [dict(text="some words é %d" % i, score=float("nan"), low=float("-inf"), raw=b"x",
                     when=datetime.date(2024, 1, 1), nothing=None) for i in range(40)]
class ParquetFile:
    def __init__(self, path): self.path = open(path, "rb")
    def iter_batches(self): return [Batch()]
EOF
    printf 'PAR1xx' > "it's a b.parquet"
    run_tiny --data "it's a b.parquet" --out none
    sed -n 's/.*convert it.*): python3/python3/p' "$stderr" > line.sh
    PYTHONPATH=$PWD/fake sh line.sh || fail "the line does not run: $(cat line.sh)"
    run_tiny --data rows.jsonl --out none
    expect_code 0
    ! grep -q 'dropped\|expected a value' "$stderr" || fail "rows are lost: $(cat "$stderr")"
}

# ---- tokenizers, templates and what the first lines say ----

# A model folder "base" with 600 tokens in its vocabulary and no tokenizer.
make_base() {
    run_tiny --vocab 600 --sample-tokens 0 --out drawn
    expect_code 0
    mv drawn/model base
}

# The files of GPT-2's tokenizer for the letters of words(): a byte is its letter, \u0120 a blank.
vocab='{"a": 0, "b": 1, "c": 2, "\u0120": 3, "ab": 4, "\u0120a": 5, "<|endoftext|>": 6, "A": 7, "Q": 8, ":": 9, "\u010a": 10}'

words() { # COUNT rows
    i=0
    while [ $i -lt "$1" ]; do
        echo '{"question": "ab ab", "answer": "c a"}'
        i=$((i + 1))
    done
}

add_vocab_files() { # FOLDER
    echo "$vocab" > "$1/vocab.json"
    printf '#version: 0.2\na b\n\304\240 a\n' > "$1/merges.txt"
}

test_prompts_are_shown_with_their_expected_answers() {
    { rows 1; echo '{"question": "2+3?", "level": 7}'; echo '{"question": ""}'; } > sums.jsonl
    run_tiny --data sums.jsonl --task grpo --reward exact --answer-tokens 8 --show-rows 3
    expect_code 0
    expect_out "rows: prompts: question; no chat template; answered by the model; other keys: level"
    expect_out "row 1, sums.jsonl:1: prompt of 5 tokens"
    expect_out "expected, not trained: 0"
    expect_out "row 2, sums.jsonl:2: dropped: the row has no answer, which reward exact compares with"
    expect_out "row 3, sums.jsonl:3: dropped: the prompt is empty"
    grep -qF '[[' "$stdout" && fail "something counts in the loss"
    run_tiny --data sums.jsonl --task grpo --reward exact --answer-tokens 8 --show-rows 1 --json
    expect_out '"cut":false,"expected":"0","tokens":[{"id":48,"text":"0","counts":false}'
}

# The ids of the first row, and a star before those that count.
shown_ids() {
    run --data words.jsonl --show-rows 1 --json "$@"
    expect_code 0
    sed 's/.*"tokens"://; s/{"id":\([0-9]*\),"text":"[^"]*","counts":\([a-z]*\)}[],]*/\1\2 /g
         s/\([0-9]*\)true/*\1/g; s/false//g; s/[]}[]//g; s/ $//' "$stdout"
}

test_vocab_json_and_merges_txt_are_a_tokenizer() {
    make_base
    add_vocab_files base
    words 20 > words.jsonl
    echo '{"tokenizer_class": "GPT2Tokenizer"}' > base/tokenizer_config.json
    expect_same "$(shown_ids --model base)" "4 3 4 10 *2 *5 *6" "ids"
}

pieces=$here/../golden/sentencepiece

test_a_sentencepiece_file_is_a_tokenizer_from_training_to_chat() {
    make_base
    words 20 > words.jsonl
    cp "$pieces/llama.model" base/tokenizer.model
    set -- --data words.jsonl --seq-len 32 --batch-size 2 --steps 2 --sample-tokens 0 --threads 1 --device cpu
    run --model base "$@" --out out
    expect_code 0
    cmp "$pieces/llama.model" out/model/tokenizer.model || fail "the model's tokenizer is another"
    cp "$pieces/gemma.model" other.model
    run --model base "$@" --tokenizer other.model --out named
    expect_code 0
    rm other.model
    run --resume named --steps 4
    expect_code 0
    cmp "$pieces/gemma.model" named/model/tokenizer.model || fail "the named tokenizer is not kept"
    for model in out named/model; do
        "$bin/hybrid-chat" --model $model --prompt "ab" --max-tokens 4 --quiet > "$stdout" 2> "$stderr" ||
            fail "no chat with $model: $(cat "$stderr")"
    done
    echo ab ab | "$bin/hybrid-tokenize" --tokenizer base --ids > ids || fail "no ids"
    "$bin/hybrid-tokenize" --tokenizer base/tokenizer.model --decode < ids > back || fail "no text"
    expect_same "$(cat back)" "ab ab" "text"
}

test_text_without_tokens_is_counted_in_log_summary_and_report() {
    make_base
    cp "$pieces/unigram.model" base/tokenizer.model
    for _ in $(seq 40); do echo '你好 and more of the words that it has'; done > text.txt
    sed 's/.*/{"question": "the", "answer": "&"}/' text.txt > words.jsonl
    set -- --model base --seq-len 32 --batch-size 2 --steps 2 --sample-tokens 0 --threads 1 --device cpu
    for data in text.txt words.jsonl; do
        run "$@" --data $data --out out-$data
        expect_code 0
        expect_err "$data: 40 of "
        expect_err 'tokens are <unk>: the tokenizer has no pieces for this text, for example "你好 and'
        expect_out "40 of "
        grep -q '"tokens_unknown": 40' out-$data/summary.json || fail "summary.json does not count them"
        grep -q 'tokens are &lt;unk&gt;' out-$data/report.html || fail "the report does not count them"
    done
    yes '你' | head -200 > val.txt
    run "$@" --data text.txt --val-data val.txt --out held-out
    expect_err "val.txt: 200 of "
    expect_err "tokens are <unk>, more than a tenth"
    "$bin/hybrid-tokenize" --tokenizer base --out shards text.txt > "$stdout" 2> "$stderr" || fail "no shards"
    expect_err "40 of "
    expect_err 'tokens are <unk>: the tokenizer has no pieces for this text, for example "你好'
    "$bin/hybrid-tokenize" --tokenizer base --ids < text.txt > "$stdout" 2> "$stderr" || fail "no ids"
    expect_err "tokens are the unknown token 0"
}

test_rows_say_which_tokens_begin_and_end_them() {
    make_base
    words 20 > words.jsonl
    cp "$pieces/llama.model" base/tokenizer.model
    set -- --model base --data words.jsonl --seq-len 32 --batch-size 2 --steps 1 --sample-tokens 0 --threads 1 \
        --device cpu
    says='begins with no special token (tokenizer read as by sentencepiece; "add_bos_token": true in'
    run "$@" --show-rows 1
    expect_out "$says tokenizer_config.json adds <s>), ends with </s>"
    run "$@" --out out
    expect_out "$says"
    grep -q '"add_bos_token": false' out/model/tokenizer_config.json || fail "the export does not say that none is added"
    expect_file out/model/tokenizer.json
    echo '{"add_bos_token": true}' > base/tokenizer_config.json
    run "$@" --show-rows 1
    expect_out "; begins with <s>, ends with </s>"
    expect_out '  1 "<s>"'
    run "$@" --show-rows 1 --tokenizer none
    grep -q "begins with" "$stdout" && fail "bytes have special tokens"
    return 0
}

test_weights_of_pytorch_are_refused_with_the_line_that_converts_them() {
    make_base
    words 20 > words.jsonl
    cp "$pieces/llama.model" base/tokenizer.model
    mv base/model.safetensors base/pytorch_model.bin
    run --model base --data words.jsonl --out out
    expect_refusal "base has its weights in pytorch_model.bin" \
        "M.from_pretrained('base', torch_dtype='auto').save_pretrained('base')"
}

test_tokenizer_files_that_are_not_supported_are_refused_by_name() {
    make_base
    words 20 > words.jsonl
    for name in sentencepiece.bpe.model tekken.json vocab.txt vocab.json; do
        echo x > "base/$name"
        run --model base --data words.jsonl --out out
        expect_refusal "base has the tokenizer file $name" "save_pretrained"
        rm "base/$name"
    done
    add_vocab_files base
    echo '{"tokenizer_class": "CLIPTokenizer"}' > base/tokenizer_config.json
    run --model base --data words.jsonl --out out
    expect_refusal "CLIPTokenizer" "GPT2Tokenizer and Qwen2Tokenizer"
}

test_a_folder_without_a_tokenizer_is_trained_on_bytes_only_when_asked() {
    make_base
    words 20 > words.jsonl
    set -- --model base --data words.jsonl --seq-len 32 --batch-size 2 --steps 2 --sample-tokens 0 --threads 1 \
        --device cpu
    run "$@" --out out
    expect_refusal "base has 600 tokens in its vocabulary, but no tokenizer" "--tokenizer none"
    run "$@" --show-rows 1
    expect_refusal "base has 600 tokens in its vocabulary, but no tokenizer"
    run "$@" --tokenizer none --out out
    expect_code 0
    expect_out "bytes, 256 of the vocabulary's 600 entries"
    run --resume out --steps 4
    expect_code 0
}

test_bytes_that_a_small_vocabulary_lacks_are_not_blamed_on_a_tokenizer() {
    rows 20 > sums.jsonl
    echo "some text, again and again and again" > text.txt
    run_tiny --vocab 50 --data sums.jsonl --out out
    expect_refusal "sums.jsonl: line 1: a row has the byte 63" "there is no tokenizer" "name one with --tokenizer"
    run_tiny --vocab 50 --data text.txt --out out
    expect_refusal "text.txt is read as bytes 0 to 255, because there is no tokenizer" "only 50 ids" "--tokenizer"
}

test_drawn_weights_and_bytes_are_named_for_a_real_vocabulary() {
    run_tiny --vocab 600 --out out
    expect_code 0
    expect_out "drawn at random: nano is a shape without weights"
    expect_out "bytes, 256 of the vocabulary's 600 entries: there is no tokenizer"
    run_tiny --out plain
    grep -q "drawn\|entries" "$stdout" && fail "a model of bytes has notices: $(head -5 "$stdout")"
    return 0
}

make_template() {
    make_base
    add_vocab_files base
    cat > base/tokenizer_config.json << 'END'
{"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>", "chat_template":
 "{% for m in messages %}{{ 'Q:' if m.role == 'user' else 'A:' }}{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"}
END
    words 40 > words.jsonl
}

test_questions_and_answers_are_written_with_the_template_of_the_folder() {
    make_template
    expect_same "$(shown_ids --model base)" "8 9 4 3 4 6 7 9 *2 *5 *6" "ids with the template"
    expect_same "$(shown_ids --model base --chat-template conversations)" "4 3 4 10 *2 *5 *6" "ids without"
    expect_same "$(shown_ids --model base --chat-template plain)" "4 3 4 10 *2 *5 *6" "plain ids"
    set -- --model base --data words.jsonl --seq-len 32 --batch-size 2 --steps 2 --sample-tokens 8 --threads 1 \
        --device cpu
    run "$@" --out out
    expect_code 0
    expect_out "question and answer; the chat template of the model folder; loss on answers"
    grep -q "the chat template of the model folder" out/summary.json || fail "summary.json names no template"
    run "$@" --chat-template plain --out plain
    expect_out "question and answer; no chat template; loss on answers"
}

# Such a run has no columns in its configuration, and its template is auto.
test_a_run_from_before_the_template_was_the_default_resumes_as_it_began() {
    make_template
    set -- --model base --data words.jsonl --seq-len 32 --batch-size 2 --sample-tokens 0 --threads 1 --device cpu \
        --chat-template conversations --save-every 4 --steps 8
    run "$@" --out whole
    run "$@" --out old
    expect_code 0
    rm -rf old/checkpoint-8
    sed -i 's/chat_template = "[a-z]*"/chat_template = "auto"/; /columns = /d' old/config.cfg
    grep -q 'chat_template = "auto"' old/config.cfg || fail "$(cat old/config.cfg)"
    run --resume old --quiet
    expect_code 0
    expect_same "$(losses old)" "$(losses whole)" "losses"
}

# ---- cut rows ----

test_cut_and_dropped_rows_are_counted_in_log_summary_and_report() {
    long=$(printf 'x%.0s' $(seq 60))
    { rows 30; echo "{\"question\": \"$long\", \"answer\": \"1\"}"
      for _ in $(seq 4); do echo "{\"question\": \"q\", \"answer\": \"$long\"}"; done; } > sums.jsonl
    run_tiny --data sums.jsonl --out out
    expect_code 0
    expect_err "cut 4 of 35 rows because they are longer than the sequence of 32 tokens"
    expect_err "dropped 1 of 35 rows (1: no answer is left after cutting)"
    expect_out "1 of 35 rows dropped (1: no answer is left after cutting), 4 cut"
    for line in '"rows": 35' '"rows_dropped": 1' '"rows_cut": 4'; do
        grep -q "$line" out/summary.json || fail "summary.json lacks $line"
    done
    grep -q 'no answer is left after cutting), 4 cut' out/report.html || fail "the report does not count them"
}

# The size is in the checkpoint; the run's configuration has what the user set.
test_a_step_that_was_fitted_to_few_rows_is_the_same_after_resume() {
    rows 60 > sums.jsonl
    run --model nano --layers 1 --width 32 --heads 2 --seq-len 32 --sample-tokens 0 --threads 1 --device cpu \
        --data sums.jsonl --epochs 1 --save-every 4 --keep 9 --out whole
    expect_code 0
    expect_out "steps of 32 tokens instead of 64, because the training rows fill only"
    grep -q "^  step_tokens = 0; " whole/config.cfg || fail "config.cfg has a step that nobody set"
    cp -R whole cut
    steps=$(steps_of whole)
    for checkpoint in cut/checkpoint-*; do [ $checkpoint = cut/checkpoint-4 ] || rm -r $checkpoint; done
    [ -d cut/checkpoint-4 ] && [ "$steps" -gt 4 ] || fail "the run has $steps steps"
    run --resume cut --sample-tokens 0
    expect_code 0
    expect_same "$(steps_of cut)" "$steps" "steps"
    expect_same "$(losses cut)" "$(losses whole)" "losses"
}

test_more_than_a_tenth_dropped_is_said() {
    { rows 36; for _ in 1 2 3 4; do echo '{"question": "no answer"}'; done; } > sums.jsonl
    run_tiny --data sums.jsonl --out out
    expect_code 0
    expect_err 'dropped 4 of 40 rows (4: "answer" is missing)'
    { rows 35; for _ in 1 2 3 4 5; do echo '{"question": "no answer"}'; done; } > sums.jsonl
    run_tiny --data sums.jsonl --out more
    expect_code 0
    expect_err 'dropped 5 of 40 rows, more than a tenth (5: "answer" is missing)'
}

# ---- --show-rows and the closing sample ----

test_show_rows_prints_rows_as_they_are_trained_and_stops() {
    { echo '{"question": "no answer"}'; echo '{"question": "2+3?", "answer": "5"}'
      printf '{"question": "%s", "answer": "%s"}\n' q "$(printf 'y%.0s' $(seq 60))"; rows 40; } > sums.jsonl
    run_tiny --data sums.jsonl --show-rows 3
    expect_code 0
    expect_nothing_written
    expect_out "rows: question and answer; no chat template; loss on answers"
    expect_out 'row 1, sums.jsonl:1: dropped: "answer" is missing'
    expect_out "row 2, sums.jsonl:2: 7 tokens, 2 counted"
    expect_out '[[5\x00]]'
    expect_out '50 "2"  43 "+"  51 "3"  63 "?"  10 "\n"  *53 "5"  *0 "\x00"'
    expect_out "row 3, sums.jsonl:3: 33 tokens, 31 counted; cut, because it is longer than a sequence"
    grep -q "row 4" "$stdout" && fail "more than three rows are shown"
    run_tiny --data sums.jsonl --show-rows 2 --json
    expect_code 0
    json_lines "$stdout" > /dev/null
    expect_same "$(wc -l < "$stdout")" 2 "lines of JSON"
    expect_out '"line":1,"format":"question and answer; no chat template; loss on answers","dropped":'
    expect_out '{"id":53,"text":"5","counts":true}'
}

test_show_rows_shows_each_part_of_a_long_text_and_each_path() {
    printf '{"text": "%s"}\n' "$(printf 'z%.0s' $(seq 60))" > texts.jsonl
    rows 9 > sums.jsonl
    run_tiny --data texts.jsonl,sums.jsonl --show-rows 1
    expect_code 0
    expect_out "row 1, texts.jsonl:1: 33 tokens, 32 counted; part 1 of 2 of the row"
    expect_out "row 1, texts.jsonl:1: 29 tokens, 28 counted; part 2 of 2 of the row"
    expect_out "row 2, sums.jsonl:1: "
}

test_show_rows_names_the_answers_of_a_pair() {
    { echo '{"prompt": "2+3?", "chosen": " 5", "rejected": " 6"}'
      printf '{"prompt": "q", "chosen": "%s", "rejected": "n"}\n' "$(printf 'y%.0s' $(seq 60))"
      echo '{"prompt": "q", "chosen": "y", "rejected": "y"}'; } > pairs.jsonl
    run_tiny --task dpo --data pairs.jsonl --show-rows 3
    expect_code 0
    expect_same "$(grep -c "^rows: " "$stdout")" 1 "lines with the format"
    expect_same "$(grep -c "^counted in the loss: " "$stdout")" 1 "lines that explain the marks"
    expect_out "rows: pairs of chosen and rejected answers; no chat template; loss on answers"
    expect_out "row 1, pairs.jsonl:1, chosen: 7 tokens, 3 counted"
    expect_out "row 1, pairs.jsonl:1, rejected: 7 tokens, 3 counted"
    expect_out "row 2, pairs.jsonl:2, chosen: 31 tokens, 30 counted; cut, because the pair is longer than a sequence"
    expect_out "row 2, pairs.jsonl:2, rejected: 3 tokens, 2 counted"
    expect_out "row 3, pairs.jsonl:3: dropped: chosen and rejected are the same"
    grep -q "rejected.*; cut\|; part" "$stdout" && fail "an answer that lost nothing is cut: $(cat "$stdout")"
    run_tiny --task orpo --data pairs.jsonl --show-rows 1
    expect_out "loss on answers and, for the chosen one, its prompt"
    run_tiny --task dpo --data pairs.jsonl --show-rows 2 --json
    expect_code 0
    json_lines "$stdout" > /dev/null
    expect_same "$(grep -c '"cut":true,"part":1,"answer":"chosen","tokens"' "$stdout")" 1 "lines of JSON"
    expect_same "$(grep -c '"cut":false,"part":2,"answer":"rejected","tokens"' "$stdout")" 2 "lines of JSON"
}

test_show_rows_refuses_what_has_no_rows() {
    echo "only text" > notes.txt
    run_tiny --data notes.txt --show-rows 2
    expect_refusal "notes.txt has no rows to show"
    run_tiny --show-rows 2
    expect_refusal "built-in text has no rows"
    rows 9 > sums.jsonl
    for count in 0 -1 x 2.5; do
        run_tiny --data sums.jsonl --show-rows=$count
        expect_refusal "--show-rows is \"$count\"; accepted: 1 or more"
    done
    run_tiny --data sums.jsonl --show-rows
    expect_refusal "--show-rows needs a value"
    run_tiny --data sums.jsonl --show-rows 1 --ranks 2
    expect_refusal "--ranks cannot be used with --show-rows"
}

test_the_closing_sample_of_rows_is_an_answer_to_a_held_out_row() {
    { rows 40; echo '{"question": "the last one?", "answer": "yes"}'; } > sums.jsonl
    run_tiny --data sums.jsonl --val-fraction 0.01 --out out
    expect_code 0
    expect_out "answer to a held-out row"
    expect_out "the last one?"
    grep -A1 "answer in the data" "$stdout" | grep -q "^yes$" || fail "no reference: $(tail -15 "$stdout")"
    grep -q '"reference": "yes"' out/sample.json || fail "$(cat out/sample.json)"
    grep -q "Answer in the data" out/report.html || fail "the report lacks the reference"
    run --resume out --steps 8
    expect_code 0
    expect_out "answer to a held-out row"
    run_tiny --data sums.jsonl --prompt "2+2?" --out asked
    grep -q "held-out row" "$stdout" && fail "a prompt is set, and a row is answered"
    run_tiny --data sums.jsonl --val-fraction 0 --out none
    expect_code 0
    expect_out "sample"
    run_tiny --data sums.jsonl --ranks 2 --val-fraction 0.01 --out ranks
    expect_code 0
    expect_out "the last one?"
}

test_a_run_on_pairs_is_scaled_away_from_its_beginning() {
    i=0
    while [ $((i += 1)) -le 40 ]; do
        echo "{\"prompt\": \"$i is \", \"chosen\": \"yes, $i\", \"rejected\": \"no, $i\"}"
    done > pairs.jsonl
    run_tiny --out base
    run_tiny --init-from base --data pairs.jsonl --val-fraction 0.3 --task dpo --out dpo --lr 1e-3
    expect_code 0
    kept=$(cat dpo/metrics.jsonl dpo/summary.json | cksum)
    run_other hybrid-export dpo --scale auto --out further
    expect_code 0
    expect_out "chosen before rejected"
    expect_out "written"
    expect_out "wrote further"
    expect_file further/model.safetensors
    expect_same "$(cat dpo/metrics.jsonl dpo/summary.json | cksum)" "$kept" "files of the run"
    run_other hybrid-export dpo --scale 3 --out three
    expect_code 0
    cmp -s three/model.safetensors dpo/model/model.safetensors && fail "nothing was scaled"
    run_other hybrid-export dpo --scale 1 --out one
    cmp -s one/model.safetensors dpo/model/model.safetensors || fail "scale 1 changes weights"
    for scale in 0 -1 101 two 1.5x ""; do
        run_other hybrid-export dpo --scale "$scale" --out wrong
        expect_code 2
        expect_err "--scale accepts auto, or a number above 0"
    done
    run_other hybrid-export dpo --scale auto --data pairs.jsonl --out wrong
    expect_code 2
    expect_err "the run's own held-out data"
    for flag in "--calibrate pairs.jsonl" "--eval-batches 2"; do
        # shellcheck disable=SC2086 # a flag and its value
        run_other hybrid-export dpo --gguf wrong --type q4_0 --scale 2 $flag
        expect_code 2
        expect_err "of the run as trained"
    done
    run_other hybrid-export --merge --adapter somewhere --scale 2 --out wrong
    expect_code 2
    expect_err "lora_alpha"
    for scale in auto 2; do
        run_other hybrid-export base --scale $scale --out wrong
        expect_code 2
        expect_err "began with random weights"
    done
    [ ! -e wrong ] || fail "a refused export wrote something"
}

test_a_run_with_rewards_shows_answers_and_is_evaluated() {
    for a in 0 1 2 3 4 5 6 7 8 9; do echo "{\"prompt\": \"1+$a=\", \"answer\": \"$((a + 1))<b>\"}"; done > sums.jsonl
    run_tiny --data sums.jsonl --val-fraction 0.3 --task grpo --reward "regex:[a-z]" --answer-tokens 4 \
        --prompts 2 --samples 4 --out out
    expect_code 0
    grep -q '"example":{"prompt":"1+' out/rewards.jsonl || fail "no example: $(head -c 300 out/rewards.jsonl)"
    grep -q "best answer" out/report.html || fail "the report shows no answers"
    run --eval-only --model out --data sums.jsonl
    expect_code 0
    expect_out "the answers in the rows are measured"
    expect_out "greedy"
}
