# stage.sh: what commands of the pages find when they are run. Sourced by commands.sh.
#
# An installed copy of the programs and the library, a home with a small model that stands for those a user
# has downloaded (its files are as theirs: config.json, safetensors, tokenizer.json, chat template), and for
# each page a fresh folder that looks like a clone, with the data files that pages talk of.

# The same variables as the make that started us (they come quoted for a shell), but not its jobs.
variables=()
eval "variables=(${HYBRID_MAKE_ARGS:-})"
make_tree() {
    env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -C "$root" --no-print-directory "${variables[@]}" "$@"
}

small="--model nano --layers 2 --width 64 --heads 4 --kv-heads 2 --mlp-width 128 --context 256
       --seq-len 64 --vocab 609 --qkv-bias --steps 60 --batch-size 4 --builtin-bytes 60000
       --sample-tokens 0 --device cpu"

# 27 million parameters: large enough to learn a few answers by heart, as the guide has it do.
middle="--model nano --layers 9 --width 512 --heads 8 --kv-heads 4 --mlp-width 1408 --context 512
        --seq-len 64 --vocab 609 --qkv-bias --steps 20 --batch-size 4 --builtin-bytes 60000
        --sample-tokens 0 --eval-every 0 --device cpu"

# A model that Qwen's architecture computes, with a tokenizer of 609 tokens.
make_model() { # FOLDER SIZE
    mkdir -p "$(dirname "$1")"
    # shellcheck disable=SC2086 # the words are arguments
    "$bin/hybrid-train" $2 --out "$scratch/made" --quiet || return 1
    mv "$scratch/made/model" "$1"
    rm -rf "$scratch/made"
    cp "$root"/tests/golden/rows/tokenizer*.json "$1"
    cat > "$1/chat_template.jinja" << 'END'
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}
END
}

# Questions and answers, one a line.
make_rows() { # FIRST COUNT
    local i
    for ((i = $1; i < $1 + $2; i++)); do
        printf '{"messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": "%s"}]}\n' \
            "What is $i and $((i % 7))?" "$((i + i % 7)), I think."
    done
}

# Text of about 200 kB, the same each time: a license, again and again.
make_text() { for _ in $(seq 180); do cat "$root/LICENSE"; done; }

set_up_stage() {
    make_tree install PREFIX="$scratch/usr" > "$scratch/log" 2>&1 || return 1
    export HOME=$scratch/home PATH=$scratch/usr/bin:$PATH PKG_CONFIG_PATH=$scratch/usr/lib/pkgconfig
    export LD_LIBRARY_PATH=$scratch/usr/lib MANPATH=$scratch/usr/share/man
    unset XDG_CACHE_HOME HF_HOME HF_HUB_CACHE
    make_model "$HOME/models/Qwen2.5-0.5B-Instruct" "$small" || return 1
    cp -r "$HOME/models/Qwen2.5-0.5B-Instruct" "$HOME/models/Qwen2.5-0.5B"
    make_model "$HOME/models/Qwen2.5-1.5B-Instruct" "$middle" || return 1 # the guide's
    cp -r "$HOME/models/Qwen2.5-1.5B-Instruct" "$HOME/models/Qwen3-8B"    # its chapter on adapters
}

# A folder for a page: the tree as far as commands name it, and the files they read.
lay_out() { # PAGE FOLDER
    local name
    mkdir -p "$2/my-texts" "$2/corpus"
    for name in README.md bench configs docs examples include scripts tests; do
        ln -s "$root/$name" "$2/$name"
    done
    ln -s "$build" "$2/build"
    cp "$root"/examples/train.c "$2"
    make_text > "$2/my-texts/one.txt"
    for name in one two three; do cp "$2/my-texts/one.txt" "$2/corpus/$name.txt"; done
    cat "$root/LICENSE" "$root/LICENSE" > "$2/corpus/z-last.txt" # short: it is held out
    cp "$2/my-texts/one.txt" "$2/other.txt"
    cp -r "$HOME/models/Qwen2.5-0.5B" "$2/gpt2"
    make_rows 1 200 > "$2/mine.jsonl"
    make_rows 201 20 > "$2/held-out.jsonl"
    echo 'train: { batch_size = 8; };' > "$2/my.cfg"
    case $1 in docs/using.md | docs/library.md | docs/man/*) make_runs "$2" ;; esac
}

# Runs that pages talk of as if they were there.
make_runs() { # FOLDER
    "$bin/hybrid-train" --model "$HOME/models/Qwen2.5-0.5B" --data "$1/held-out.jsonl" \
        --out "$1/runs/mine" --quiet
    for name in a b plain predicted; do cp -r "$1/runs/mine" "$1/runs/$name"; done
    "$bin/hybrid-train" --model "$HOME/models/Qwen3-8B" --lora --data "$1/held-out.jsonl" --steps 2 \
        --out "$1/runs/lora" --quiet
    cp -r "$1/runs/lora/adapter" "$1/downloaded"
}
