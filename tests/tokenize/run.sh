#!/bin/sh
# run.sh: end-to-end tests of the program hybrid-tokenize.
#
# The program is $HYBRID_BIN/hybrid-tokenize, else build/bin/hybrid-tokenize. The last line says how
# many tests passed and failed.
here=$(cd "$(dirname "$0")" && pwd)
program="${HYBRID_BIN:-$here/../../build/bin}/hybrid-tokenize"
if [ ! -x "$program" ]; then
    echo "$program is missing: build it first"
    echo "0 passed, 1 failed"
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

# check NAME EXPECTED ACTUAL
check() {
    if [ "$2" = "$3" ]; then
        passed=$((passed + 1))
        echo "ok    $1"
    else
        failed=$((failed + 1))
        printf 'FAIL  %s\n  expected: %s\n  found:    %s\n' "$1" "$2" "$3"
    fi
}
# holds NAME FRAGMENT TEXT
holds() {
    case "$3" in
    *"$2"*) check "$1" yes yes ;;
    *) check "$1" "something with: $2" "$3" ;;
    esac
}

mkdir "$work/t"
cat > "$work/t/tokenizer.json" <<'END'
{"added_tokens": [{"id": 9, "content": "<end>", "special": true}],
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
 "post_processor": {"type": "TemplateProcessing",
   "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<end>"}}],
   "special_tokens": {"<end>": {"ids": [9]}}},
 "decoder": {"type": "ByteLevel"},
 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "Ġ": 2, "Ċ": 3, "ab": 4, "Ġab": 5, "c": 6},
           "merges": ["a b", "Ġ ab"]}}
END
printf '{"eos_token": "<end>"}' > "$work/t/tokenizer_config.json"
tokenizer="--tokenizer $work/t"

check "ids stand on one line" "4 5 2 3 6" "$(printf 'ab ab \nc' | "$program" $tokenizer --ids)"
check "a file works as the folder does" "4" \
    "$(printf ab | "$program" --tokenizer "$work/t/tokenizer.json" --ids)"
check "no text, no ids" "" "$("$program" $tokenizer --ids < /dev/null)"
check "an empty line is printed then" "1" "$("$program" $tokenizer --ids < /dev/null | wc -l | tr -d ' ')"
check "a template is added on request" "4 9" "$(printf ab | "$program" $tokenizer --ids --special)"
check "special tokens in a text" "0 9" "$(printf 'a<end>' | "$program" $tokenizer --ids)"
check "may be plain" "0" "$(printf 'a<end>' | "$program" $tokenizer --ids --plain)"
check "ids become text" "ab ab c" "$(printf '[4, 5]\n2 6' | "$program" $tokenizer --decode)"
check "special tokens are left out on request" "ab" \
    "$(echo 4 9 | "$program" $tokenizer --decode --special)"

check_exit() { # NAME CODE FRAGMENT ARGUMENTS...
    name=$1 code=$2 fragment=$3
    shift 3
    said=$("$program" "$@" 2>&1 < /dev/null)
    check "$name: exit code" "$code" "$?"
    holds "$name: message" "$fragment" "$said"
}
check_exit "help" 0 "Usage: hybrid-tokenize" --help
check_exit "version" 0 "hybrid-tokenize " --version
check_exit "no tokenizer" 2 "--tokenizer" --ids
check_exit "nothing to do" 2 "nothing to do" $tokenizer
check_exit "two things to do" 2 "cannot be combined" $tokenizer --ids --decode
check_exit "an unknown option" 2 'unknown flag --idz' $tokenizer --idz
check_exit "a missing value" 2 "needs a value" --tokenizer
check_exit "a wrong fraction" 2 "0 to 0.5" $tokenizer --out "$work/x" --val-fraction 2 "$work"
check_exit "a missing file" 2 "cannot open" --tokenizer "$work/none" --ids
check_exit "no text for shards" 2 "files or folders" $tokenizer --out "$work/x"
printf '{"model": {"type": "WordPiece"}}' > "$work/other.json"
check_exit "another model" 2 '"WordPiece"' --tokenizer "$work/other.json" --ids
said=$(echo 77 | "$program" $tokenizer --decode 2>&1)
check "an id that is none: exit code" 2 "$?"
holds "an id that is none: message" "expected 0 to 9" "$said"
said=$(echo 4x | "$program" $tokenizer --decode 2>&1)
check "no number: exit code" 2 "$?"

mkdir "$work/text"
printf 'ab ab<end>c' > "$work/text/1.txt"
printf 'cccc' > "$work/text/2.txt"
said=$("$program" $tokenizer --out "$work/out" --val-fraction 0.3 "$work/text" 2>&1)
check "shards: exit code" 0 "$?"
holds "shards: summary" "3 documents: 10 tokens" "$said"
ids() { od -An -v -tu2 -j1024 "$1" | tr -s ' \n' ' ' | sed 's/^ //; s/ $//'; }
check "shards: training documents, an eos after each" "4 5 9 6 9" "$(ids "$work/out/train/000000.bin")"
check "shards: the last document is held out" "6 6 6 6 9" "$(ids "$work/out/val/000000.bin")"
check_exit "shards are never overwritten" 2 "already exists" $tokenizer --out "$work/out" "$work/text"
check "quiet says nothing" "" \
    "$("$program" $tokenizer --quiet --out "$work/out2" "$work/text" 2>&1)"

# What else text comes as.
gzip -k "$work/text/1.txt"
"$program" $tokenizer --quiet --out "$work/packed" --val-fraction 0.3 "$work/text/1.txt.gz" "$work/text/2.txt"
check "a packed text is what it holds" "4 5 9 6 9" "$(ids "$work/packed/train/000000.bin")"
printf 'ab ab<end>c' | "$program" $tokenizer --quiet --out "$work/piped" -
check "standard input is a file" "4 5 9 6 9" "$(ids "$work/piped/train/000000.bin")"
printf '{"text": "ab ab"}\n{"text": "c"}\n' > "$work/rows.jsonl"
printf 'id,text\n1,cccc\n' > "$work/rows.csv"
"$program" $tokenizer --quiet --out "$work/rows" --val-fraction 0.3 "$work/rows.jsonl" "$work/rows.csv"
check "a row is a document" "4 5 9 6 9" "$(ids "$work/rows/train/000000.bin")"
check "rows are held out from the end" "6 6 6 6 9" "$(ids "$work/rows/val/000000.bin")"
printf '{"text": "a<end>"}\n' > "$work/special.jsonl"
"$program" $tokenizer --quiet --out "$work/special" "$work/special.jsonl"
check "special tokens spelled out in text rows are tokens, as in text files" "0 9 9" "$(ids "$work/special/train/000000.bin")"
printf '{"text": "ab"}\n{"text": 1}\n' > "$work/bad.jsonl"
check_exit "a malformed row" 2 'bad.jsonl:2: the row needs a string "text"' \
    $tokenizer --out "$work/x" "$work/bad.jsonl"
printf '{"prompt": "a", "completion": "b"}\n' > "$work/pairs.jsonl"
check_exit "questions and answers" 2 "shards cannot mark answers" \
    $tokenizer --out "$work/x" "$work/pairs.jsonl"
check_exit "no text" 2 "is a program (ELF)" $tokenizer --out "$work/x" "$program"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
