# memory.sh: state on the host and on disk, from the command line. Sourced by run.sh.

# Everything elsewhere: m and v on disk, the rest in pinned memory.
streamed="--weights-place pinned --master-place pinned --grads-place pinned --optim-place disk
          --predictor-place disk --update gather --offload-folder spill"
# Moves, a tail and validations in between.
moving="--layers 3 --steps 150 --full-steps 3 --correct-steps 1 --predict-from 0 --tail-share 0.5
        --eval-every 7 --eval-batches 1 --sample-tokens 0 --precision bf16"

# start ARGS: the program in the background, its number in $pid.
start() {
    "$program" "$@" > "$stdout" 2> "$stderr" < /dev/null &
    pid=$!
}

# wait_for COMMAND: until it succeeds, for a minute at most.
wait_for() {
    tries=0
    until eval "$*"; do
        tries=$((tries + 1))
        [ $tries -lt 3000 ] || fail "waited in vain for: $*"
        sleep 0.02
    done
}

run_streamed() {
    mkdir -p spill
    # shellcheck disable=SC2086 # the words are arguments
    run $tiny $moving $streamed "$@"
}

expect_empty_spill() {
    [ -z "$(ls -A spill)" ] || fail "left in the offload folder: $(ls -A spill)"
}

# A run with everything on the device, to compare with.
undisturbed() {
    # shellcheck disable=SC2086
    run $tiny $moving --out whole
    expect_code 0
}

last_of() { find "$1" -maxdepth 1 -name 'checkpoint-*' | sort -t - -k 2n | tail -n 1; }

# The same losses, step by step, and the same last checkpoint.
expect_same_run() {
    expect_same "$(losses "$1" | cksum)" "$(losses whole | cksum)" "losses of $1"
    for file in weights optimizer predictor; do
        cmp -s "$(last_of "$1")/$file.safetensors" "$(last_of whole)/$file.safetensors" ||
            fail "$file.safetensors of $1 differs"
    done
}

test_state_elsewhere_ends_with_the_same_losses_and_tensors() {
    undisturbed
    run_streamed --out out
    expect_code 0
    expect_same_run out
    expect_empty_spill
}

# A number below $1, from the system.
random_below() {
    echo $(($(od -An -N4 -tu4 /dev/urandom) % $1))
}

# Twelve sittings are killed while they train and save, each at another time; the next one goes on from
# what it finds. Where the last one came to its end, nothing is different.
test_killing_at_any_time_leaves_the_last_checkpoint_and_nothing_else() {
    undisturbed
    mkdir spill
    killed=0
    for sitting in 1 2 3 4 5 6 7 8 9 10 11 12; do
        again=--overwrite
        [ -z "$(last_of out 2> /dev/null)" ] || again="--resume auto"
        # shellcheck disable=SC2086
        start $tiny $moving $streamed --save-every 2 --out out $again
        sleep "0.$(printf '%03d' "$(random_below 500)")"
        kill -KILL $pid 2> /dev/null
        wait $pid 2> /dev/null
        code=$?
        [ $code = 137 ] || [ $code = 0 ] || fail "sitting $sitting, code $code: $(cat "$stderr")"
        [ $code = 0 ] || killed=$((killed + 1))
        expect_empty_spill
    done
    [ $killed -ge 3 ] || fail "only $killed sittings were killed"
    [ -n "$(last_of out)" ] || fail "twelve sittings have not saved once"
    run_streamed --save-every 2 --out out --resume auto
    expect_code 0
    expect_same_run out
    expect_empty_spill
}

test_interrupt_saves_and_the_run_goes_on_with_other_places() {
    undisturbed
    mkdir spill
    # shellcheck disable=SC2086
    start $tiny $moving $streamed --save-every 10 --out out
    wait_for "ls -d out/checkpoint-* > /dev/null 2>&1"
    kill -INT $pid
    wait $pid
    code=$?
    [ $code = 75 ] || [ $code = 0 ] || fail "exit code $code: $(cat "$stderr")"
    expect_empty_spill
    run --resume out --weights-place device --master-place device --optim-place pinned \
        --predictor-place pinned --update now
    expect_code 0
    expect_same_run out
}

# ---- folders that will not do ------------------------------------------------------------------------

test_a_folder_that_is_missing_or_a_file_is_refused() {
    run_tiny --optim-place disk --out out
    expect_refusal "offload_folder"
    run_tiny --optim-place disk --offload-folder nowhere --out out
    expect_refusal "nowhere"
    touch file
    run_tiny --optim-place disk --offload-folder file --out out
    expect_refusal "file" "folder"
}

test_a_folder_with_too_little_room_by_offload_size_is_refused() {
    mkdir spill
    run_tiny --optim-place disk --offload-folder spill --offload-size 4096 --out out
    expect_refusal "offload_size" "short"
}

# mounted OPTIONS: a file system of its own on spill; skips where that is not allowed.
mounted() {
    mkdir spill
    mount -t tmpfs -o "$1" tmpfs spill 2> /dev/null || skip "a file system cannot be mounted here"
    trap 'umount spill' EXIT
}

test_a_read_only_folder_is_refused() {
    mounted ro,size=1m
    run_tiny --optim-place disk --offload-folder spill --out out
    expect_refusal "spill"
}

test_a_full_disk_is_refused_with_what_is_needed_and_what_is_free() {
    mounted size=64k
    run_tiny --optim-place disk --offload-folder spill --out out
    expect_refusal "offload_folder" "short"
}

# The limit on the size of files comes while the run goes on: writes beyond it fail from then on. What is
# said is shorter.
test_a_disk_error_in_a_step_ends_the_run_and_the_last_checkpoint_goes_on() {
    command -v prlimit > /dev/null || skip "prlimit is not here"
    undisturbed
    mkdir spill
    trap '' XFSZ # the program shall see the error, not the signal
    # shellcheck disable=SC2086
    start $tiny $moving $streamed --save-every 5 --out out
    wait_for "ls -d out/checkpoint-* > /dev/null 2>&1"
    prlimit --pid $pid --fsize=65536:65536 2> /dev/null
    wait $pid
    code=$?
    [ $code = 0 ] && skip "the run was over before the disk failed"
    expect_code 1
    expect_err "spill"
    expect_empty_spill
    run --resume out
    expect_code 0
    expect_same_run out
}

# ---- budgets --------------------------------------------------------------------------------------

test_budgets_below_the_minimum_name_what_is_short() {
    run_tiny --max-gpu-mem 64k --out out
    expect_refusal "max_gpu_mem" "short"
    run_tiny --cpu-mem 64k --out out
    expect_refusal "cpu_mem" "short"
}
