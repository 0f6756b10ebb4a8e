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
    expect_refusal "c.jsonl" "chat_template" "chatml, llama2, llama3, mistral, alpaca"
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
