# ranks.sh: starting several processes, by ourselves and by other launchers, and what is refused before that.

no_launcher() {
    unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT HYBRID_RANK HYBRID_RANKS \
        HYBRID_LOCAL_RANK HYBRID_LOCAL_RANKS HYBRID_ADDRESS HYBRID_JOB HYBRID_SECRET SLURM_PROCID SLURM_STEP_ID
}
no_launcher

# torchrun RANK COUNT: its variables, as a process finds them.
torchrun_says() {
    RANK=$1 WORLD_SIZE=$2 LOCAL_RANK=$1 LOCAL_WORLD_SIZE=$2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400
    export RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
}

has_driver() { ldconfig -p 2> /dev/null | grep -q 'libcuda\.so\.1'; }

# cards N: a driver that has so many.
cards() {
    command -v ${CC:-gcc} > /dev/null || skip "no compiler"
    has_driver && skip "a driver is here"
    echo "int cuInit(unsigned f) { return (int)f; } int cuDeviceGetCount(int *n) { *n = $1; return 0; }" |
        ${CC:-gcc} -shared -fPIC -x c - -o libcuda.so.1 2> /dev/null ||
        skip "no shared library can be made"
    LD_LIBRARY_PATH=$PWD
    export LD_LIBRARY_PATH
}

expect_lines() { # FILE TEXT COUNT
    expect_same "$(grep -cF -e "$2" "$1")" "$3" "lines with \"$2\""
}

test_gpus_without_a_driver_are_refused_before_anything_starts() {
    has_driver && skip "a driver is here"
    run --model nano --gpus 2 --out out
    expect_refusal "--gpus 2" "no NVIDIA driver" "--ranks 2"
    run --model nano --gpus 1 --out out
    expect_refusal "device is cuda, but CUDA is not available" "no NVIDIA driver"
}

test_fewer_cards_than_gpus_are_counted_before_anything_starts() {
    cards 1
    run --model nano --gpus 2 --out out
    expect_refusal "--gpus 2" "CUDA finds only 1" "CUDA_VISIBLE_DEVICES" "--ranks 2"
}

test_as_many_cards_as_gpus_are_enough() {
    cards 2
    HYBRID_CUDA_LIBRARY=$PWD/no-such-file.so
    export HYBRID_CUDA_LIBRARY
    run --model nano --gpus 2 --out out
    expect_code 2
    expect_err "device is cuda:"
    expect_err "no-such-file.so"
}

test_gpus_on_the_cpu_are_refused_with_what_to_use() {
    run_tiny --gpus 2 --out out
    expect_refusal "--gpus 2 needs GPUs" "device is cpu" "--ranks 2"
    run --model nano --gpus 2 --device cuda:1 --out out
    expect_refusal "device is cuda:1" "expected auto or cuda"
}

test_wrong_numbers_are_refused() {
    for value in 0 -1 2x 257 ""; do
        run_tiny --ranks "$value"
        expect_refusal "--ranks is \"$value\"" "1 to 256"
    done
    run_tiny --ranks
    expect_refusal "--ranks needs a value" "1 to 256"
    run_tiny --ranks 2 --gpus 2
    expect_refusal "--gpus 2 and --ranks 2" "cannot be combined"
}

test_other_actions_have_one_process() {
    for action in --doctor --list-models --eval-only; do
        run --ranks 2 $action
        expect_refusal "--ranks cannot be used with $action"
    done
    run_tiny --ranks 2 --zero-stage 2 --print-config
    expect_code 0
    expect_out 'zero_stage = "2";  # flag --zero-stage'
}

test_a_launcher_with_another_number_is_named() {
    torchrun_says 1 4
    run_tiny --ranks 2 --out out
    expect_refusal "--ranks 2" "torchrun started 4" "WORLD_SIZE is 4"
    no_launcher
    RANK=1 WORLD_SIZE=2 && export RANK WORLD_SIZE
    run_tiny --out out
    expect_refusal "RANK is set" "LOCAL_RANK is not"
}

# What is wrong with the settings is said once, by who would start the others.
test_wrong_settings_start_nothing() {
    run_tiny --ranks 3 --batch-size none --out out
    expect_refusal "batch_size"
    run_tiny --ranks 3 --zero-stage 4 --out out
    expect_refusal "ranks.zero_stage" "auto, 0, 1, 2, 3"
}

test_a_flag_that_came_twice_is_warned_of_once() {
    run_tiny --ranks 3 --seed 5 --seed 6 --out out
    expect_lines "$stderr" "--seed is given more than once" 1
}

# start ARGS: the program in the background, its number in $pid.
start() {
    "$program" "$@" > "$stdout" 2> "$stderr" < /dev/null &
    pid=$!
}

wait_for() { # COMMAND, for a minute at most
    tries=0
    until eval "$*"; do
        tries=$((tries + 1))
        [ $tries -lt 3000 ] || fail "waited in vain for: $*"
        sleep 0.02
    done
}

losses() { grep -v '^{"event":' "$1/metrics.jsonl" | sed 's/.*"loss":\([^,]*\),.*/\1/'; }

long="$tiny --steps 2000 --save-every 100 --predictor none --rank-timeout 5"

test_two_ranks_train_what_one_does_and_rank_0_prints() {
    run_tiny --ranks 1 --out one
    expect_code 0
    run_tiny --ranks 2 --out two
    expect_code 0
    expect_empty "$stderr"
    expect_lines "$stdout" ": held-out loss" 1
    expect_lines "$stdout" "everything is in two" 1
    expect_file two/report.html
    losses one > one.losses
    losses two > two.losses
    expect_same "$(paste one.losses two.losses | awk '{ d = $1 - $2; if (d > 1e-4 || d < -1e-4) print }')" \
        "" "losses that differ"
}

# Losses are means over the pairs of all ranks, and so are accuracies and rewards.
test_two_ranks_learn_from_pairs_what_one_does() {
    for i in $(seq 0 99); do
        echo '{"prompt": "'$((i % 9))'?", "chosen": "yes '$i'", "rejected": "no"}'
    done > pairs.jsonl
    for task in "simpo" "dpo --lora"; do
        for ranks in 1 2; do
            # shellcheck disable=SC2086
            run_tiny --data pairs.jsonl --task $task --ranks $ranks --predictor none --out out$ranks --overwrite
            expect_code 0
            sed -n 's/.*"train_pair_accuracy":\([0-9.]*\),"train_reward_chosen":\([0-9.e-]*\).*/\1 \2/p' \
                out$ranks/metrics.jsonl > rewards$ranks
            losses out$ranks > losses$ranks
        done
        expect_same "$(wc -l < rewards1)" "$(wc -l < losses1)" "steps with rewards"
        expect_same "$(paste losses1 losses2 rewards1 rewards2 | awk '{
            if (NF != 6) print
            a = $1 - $2; b = $3 - $5; c = $4 - $6
            if (a * a > 1e-8 || b * b > 1e-8 || c * c > 1e-6) print }')" "" "$task: steps that differ"
    done
    run_tiny --data pairs.jsonl --task dpo --ranks 2 --out three
    expect_code 2
    expect_lines "$stderr" "--reference inline" 1
}

test_ranks_are_shown_at_the_start_at_the_end_and_in_the_record() {
    run_tiny --ranks 1 --out one
    expect_code 0
    expect_lines "$stdout" "ranks " 0
    for file in metrics.jsonl plan.json summary.json; do
        grep -qE '"(ranks|zero_stage|transport)"' one/$file && fail "$file of one rank tells of several"
    done
    run_tiny --ranks 2 --zero-stage 1 --out two
    expect_code 0
    expect_out "ranks     2 (ZeRO stage 1, over sockets)"
    grep -qE '^ranks     2; rank [01] was the slowest in [0-9]+ of [0-9]+ steps \(median [0-9.e-]+ s, waited [0-9.e-]+ s\); its link was in use [0-9]+ % of the time; each rank sends [0-9.]+ [KM]iB( to [0-9.]+ [KM]iB)? per step and uses [0-9.]+ [KM]iB' "$stdout" ||
        fail "no ranks at the end: $(cat "$stdout")"
    grep -q '^{"event":"start",.*"ranks":2,"zero_stage":1,"transport":"sockets",' two/metrics.jsonl ||
        fail "the start does not tell of ranks"
    for file in plan.json summary.json; do
        for words in '"ranks": 2' '"zero_stage": 1' '"transport": "sockets"'; do
            grep -qF "$words" two/$file || fail "no $words in $file"
        done
    done
    grep -q '<th scope="row">1<td>' two/report.html || fail "no row of rank 1 in the report"
    "$(dirname "$program")/hybrid-top" --once --width 120 two > page || fail "no page"
    grep -q '^rank 1 ' page || fail "no rank 1 in: $(cat page)"
}

test_json_and_quiet_are_rank_0s() {
    run_tiny --ranks 2 --quiet --out two
    expect_code 0
    expect_empty "$stdout"
    run_tiny --ranks 2 --json --out three
    expect_code 0
    expect_lines "$stdout" '"final_loss"' 1
    json_values "$stdout" > /dev/null
}

# In the background a shell lets it ignore SIGINT; one that is sent counts.
test_interrupt_of_the_launcher_saves_once_and_the_run_goes_on() {
    # shellcheck disable=SC2086
    run $long --ranks 2 --out whole
    expect_code 0
    # shellcheck disable=SC2086
    start $long --ranks 2 --out out
    wait_for "ls out/checkpoint-* > /dev/null 2>&1"
    kill -INT $pid
    wait $pid
    code=$?
    expect_code 75
    expect_lines "$stderr" "stopping after this step" 1
    expect_lines "$stdout" "stopped after step" 1
    [ "$(steps_of out)" -lt 2000 ] || fail "it was not stopped"
    run --resume out --ranks 2
    expect_code 0
    expect_same "$(losses out | cksum)" "$(losses whole | cksum)" "losses"
}

test_a_killed_rank_is_named_and_the_run_goes_on() {
    for rank in 0 1; do
        # shellcheck disable=SC2086
        start $long --steps 100000 --ranks 2 --out out$rank
        wait_for "ls out$rank/checkpoint-* > /dev/null 2>&1"
        # Children are listed in the order in which they were started.
        victim=$(cut -d ' ' -f $((rank + 1)) /proc/$pid/task/$pid/children)
        kill -KILL "$victim"
        wait $pid
        code=$?
        expect_code 1
        expect_err "rank $rank was ended by signal 9"
        expect_lines "$stderr" "hybrid-train: error: rank $rank (" 1
        last=$(newest out$rank)
        run --resume out$rank --ranks 2 --steps $((last + 5))
        expect_code 0
    done
}

# The step of a run's newest checkpoint; 0: it has none.
newest() {
    ls -d "$1"/checkpoint-* 2> /dev/null | sed 's/.*-//' | sort -n | tail -n 1 | grep . || echo 0
}

test_ranks_that_fail_are_started_again() {
    # shellcheck disable=SC2086
    run $long --ranks 2 --out whole
    # shellcheck disable=SC2086
    start $long --ranks 2 --out out --restarts 2
    for again in 1 2; do
        seen=$(newest out)
        wait_for "[ \"\$(newest out)\" -gt $seen ]"
        kill -KILL "$(cut -d ' ' -f $again /proc/$pid/task/$pid/children)"
        wait_for "grep -q 'restarting all ranks ($again of 2)' $stderr"
        wait_for "[ \$(wc -w < /proc/$pid/task/$pid/children) -eq 2 ]"
    done
    wait $pid
    code=$?
    expect_code 0
    expect_same "$(losses out | cksum)" "$(losses whole | cksum)" "losses"
    run_tiny --restarts 2 --out other
    expect_refusal "--restarts 2" "add --gpus or --ranks"
    run_tiny --restarts 2 --ranks 2
    expect_refusal "--restarts 2" "add --out FOLDER"
    run_tiny --restarts 2 --ranks 2 --out none
    expect_refusal "--restarts 2" "add --out FOLDER"
    run --selftest --ranks 2 --restarts 1 --out other
    expect_refusal "--restarts 1" "cannot be used with --selftest"
    run_tiny --ranks 2 --restarts 3 --data nowhere.txt --out other
    expect_code 2
}

test_ranks_by_torchruns_variables() {
    torchrun_says 1 2
    # shellcheck disable=SC2086
    start $tiny --out out
    other=$pid
    torchrun_says 0 2
    run_tiny --gpus 2 --device cpu --out out
    expect_refusal "--ranks 2"
    run_tiny --ranks 2 --out out
    expect_code 0
    wait $other
    expect_same $? 0 "exit code of rank 1"
    expect_lines "$stdout" ": held-out loss" 1
}

test_ranks_with_other_settings_are_refused() {
    torchrun_says 1 2
    # shellcheck disable=SC2086
    "$program" $tiny --seed 2 --out out > "$stdout.1" 2> "$stderr.1" < /dev/null &
    other=$!
    torchrun_says 0 2
    run_tiny --out out
    expect_refusal "rank 1 (" "has different settings than rank 0"
    wait $other
    expect_same $? 2 "exit code of rank 1"
    grep -q "^hybrid-train, rank 1: error: .*different settings" "$stderr.1" || fail "$(cat "$stderr.1")"
    expect_empty "$stdout.1"
}

# By the rank that had it first, and by rank 0.
test_a_failure_of_all_ranks_is_printed_once() {
    run_tiny --ranks 4 --out out
    expect_code 2
    [ "$(grep -c "hybrid-train: error: " "$stderr")" -le 2 ] || fail "$(cat "$stderr")"
    expect_err "4 ranks cannot share evenly"
    [ ! -e out ] || fail "something was written"
}

test_standard_input_is_refused_as_data_of_several() {
    printf 'some text\n' > text
    input=text
    run_tiny --ranks 2 --data - --out out
    expect_code 2
    expect_err "data is standard input (-)"
    [ ! -e out ] || fail "something was written"
}

test_a_plan_of_ranks_starts_none_and_says_what_one_sends() {
    for stage in 0 3; do
        run_tiny --ranks 2 --zero-stage $stage --predictor none --eval-every 0 --out stage$stage
        expect_code 0
        run_tiny --ranks 2 --zero-stage $stage --predictor none --eval-every 0 --out none --plan
        expect_code 0
        expect_lines "$stdout" "plan of one of 2 ranks; zero_stage $stage, link sockets" 1
        expect_lines "$stdout" "a rank sends " 1
        expect_lines "$stdout" "limited by" 1
        run_tiny --ranks 2 --zero-stage $stage --predictor none --eval-every 0 --out none --plan --json
        planned=$(json_values "$stdout" | sed -n "s/^\.link\.step_bytes$tab//p")
        # In these stages nothing is on its way at the end of a step.
        sent=$(sed -n '2s/.*"rank_bytes": *\[ *\([0-9.e+]*\).*/\1/p' stage$stage/metrics.jsonl)
        expect_same "$(awk "BEGIN { print $sent - $planned }")" 0 "sent, less planned"
        expect_same "$(json_values stage$stage/plan.json | sed -n "s/^\.link\.step_bytes$tab//p")" "$planned" "plan.json"
    done
}

test_a_plan_is_for_cards_that_are_not_here() {
    far="--plan --gpus 8 --card h100-80 --model qwen2.5-1.5b --seq-len 1024 --batch-size 64 --cpu-mem 64GB"
    for link in nvlink pcie4 pcie5 ib200; do
        # shellcheck disable=SC2086
        run $far --link $link
        expect_code 0
        expect_out "plan of one of 8 ranks; zero_stage 2, link $link"
        expect_out "tokens/s on all ranks together"
        expect_out "it fits"
    done
    # shellcheck disable=SC2086
    run $far
    expect_out "link pcie4"
    # shellcheck disable=SC2086
    run $far --link copper
    expect_refusal "auto, nvlink, pcie4, pcie5, ib200"
}

test_a_plan_of_ranks_is_refused_where_it_makes_no_sense() {
    run --plan --gpus 2 --card h100-80
    expect_refusal "add --model NAME"
    run --plan --gpus 2 --ranks 2 --model nano
    expect_refusal "cannot be combined"
    run --plan --gpus 2 --model nano --device cpu
    expect_refusal "--gpus 2 needs GPUs"
    run --plan --ranks 3 --model nano --batch-size 4
    expect_refusal "which 3 ranks cannot share evenly"
}

test_a_run_takes_the_wire_that_is_here() {
    run_tiny --link nvlink --out out
    expect_code 0
    cat "$stdout" "$stderr" > both
    expect_lines both "link = nvlink is only for plans (--plan)" 1
}

test_help_teaches_how_ranks_are_started() {
    run --help
    expect_out "hybrid-train --gpus 4"
    expect_out "--help ranks"
    for topic in ranks gpus --gpus; do
        run --help $topic
        expect_code 0
        for words in "hybrid-train --gpus 4" "mpirun -n 8" "srun " "torchrun --no-python" --zero-stage \
            --rank-timeout --transport "accepts: auto, sockets, mpi, nccl"; do
            expect_out "$words"
        done
        expect_same "$(awk 'length > 80' "$stdout")" "" "lines of more than 80 columns"
    done
}

test_nccl_is_for_cards() {
    run_tiny --ranks 2 --transport nccl --out out
    expect_code 2
    expect_err "NCCL needs a card"
}

# The library that stands in for NCCL moves memory of the CPU when a group ends.
use_standin() {
    library=$HYBRID_BUILD/tests/standin/libnccl.so
    [ -e "$library" ] || skip "no library that stands in for NCCL"
    mkdir names
    HYBRID_TEST_NCCL=1 HYBRID_NCCL=$library STANDIN_NCCL_FOLDER=$PWD/names STANDIN_NCCL_WAITS=1
    export HYBRID_TEST_NCCL HYBRID_NCCL STANDIN_NCCL_FOLDER STANDIN_NCCL_WAITS
}

test_nccl_gives_the_bits_of_sockets() {
    use_standin
    for stage in 2 3; do
        run_tiny --ranks 2 --transport nccl --zero-stage $stage --out nccl-$stage
        expect_code 0
        grep -q '"transport":"NCCL"' nccl-$stage/metrics.jsonl || fail "it was not NCCL"
        grep -q '"rank_exchanged":.0\.' nccl-$stage/metrics.jsonl || fail "NCCL took no time"
    done
    run_tiny --ranks 2 --transport sockets --out sockets
    for stage in 2 3; do
        expect_same "$(losses nccl-$stage | cksum)" "$(losses sockets | cksum)" "losses over NCCL"
    done
}

test_one_rank_sends_itself_all_by_nccl() {
    use_standin
    run_tiny --out alone
    for stage in 2 3; do
        run_tiny --transport nccl --zero-stage $stage --out nccl-$stage
        expect_code 0
        expect_out "ranks     1 (ZeRO stage $stage, over NCCL)"
        losses nccl-$stage > $stage.losses
        losses alone | paste - $stage.losses |
            awk '{ d = $1 / $2 - 1; if (d > 1e-5 || d < -1e-5) print }' > apart
        expect_empty apart
    done
    expect_same "$(cksum < 2.losses)" "$(cksum < 3.losses)" "losses of stages"
    STANDIN_NCCL_FLIP=0,0
    export STANDIN_NCCL_FLIP
    run_tiny --transport nccl --zero-stage 2 --out damaged
    [ "$(losses damaged | cksum)" != "$(cksum < 2.losses)" ] || fail "nothing went through NCCL"
}

# Every way of moving memory, each exchange at each size, each stage in each precision.
test_selftest_of_ranks_passes_and_writes_a_report() {
    for ranks in 2 ${HYBRID_TEST_LONG:+3}; do
        run --selftest --ranks $ranks --device cpu --out kept/report-$ranks
        expect_code 0
        expect_empty "$stderr"
        for file in "$stdout" kept/report-$ranks/selftest.txt; do
            expect_lines "$file" "21 of 21 checks passed: $ranks ranks over sockets." 1
            for words in "version " "system " "rank 0 " "rank $((ranks - 1)) " "started by " "NCCL  " \
                "transport " "both together "; do
                expect_lines "$file" "  $words" 1
            done
            for size in "512 bytes" "4 KiB" "64 KiB" "1 MiB" "8 MiB" "64 MiB"; do
                expect_same "$(grep -cE "(all-gather|reduce-scatter), $size +ok .* us .* GB/s$" "$file")" 2 "$size"
            done
            expect_same "$(grep -cE '(fp32|bf16), stage [0-3], sockets +ok ' "$file")" 8 "stages"
        done
    done
    expect_out "report: kept/report-$ranks/selftest.txt"
}

# What takes long and differs little is for make test-all (tests/long/cli_ranks.sh).
long_only() { [ -n "${HYBRID_TEST_LONG:-}" ] || skip "for make test-all"; }

test_selftest_names_wrong_bits() {
    long_only
    use_standin
    run --selftest --device cpu --transport nccl --quiet --out one
    expect_code 0
    expect_empty "$stdout"
    expect_lines one/selftest.txt "36 of 36 checks passed: 1 rank over NCCL." 1
    STANDIN_NCCL_FLIP=1,2048
    export STANDIN_NCCL_FLIP
    run --selftest --ranks 2 --device cpu --transport nccl --out two
    expect_code 1
    expect_err "self-test: exchanges over NCCL: all-gather, 4 KiB: rank 1 ("
    expect_err "self-test: exchanges over NCCL: reduce-scatter, 4 KiB: rank 1 ("
    expect_lines "$stdout" FAILED 2
    expect_lines two/selftest.txt FAILED 2
    expect_lines two/selftest.txt "word 511 of 1024, from rank 0, is " 1
    expect_lines two/selftest.txt "34 of 36 checks passed: 2 ranks over NCCL." 1
    expect_same "$(grep -c "libnccl.so" two/selftest.txt)" 1 "where NCCL was found"
}

test_selftest_names_a_rank_that_is_lost() {
    start --selftest --ranks 2 --device cpu --out report
    wait_for "grep -q 'all-gather, 4 KiB' report/selftest.txt 2> /dev/null"
    kill -KILL "$(cut -d ' ' -f 2 "/proc/$pid/task/$pid/children")"
    wait $pid
    code=$?
    expect_code 1
    expect_lines "$stderr" "hybrid-train: error: rank 1 (" 1
    expect_lines report/selftest.txt "failed: rank 1 (" 1
}

test_selftest_of_ranks_is_refused_like_their_training() {
    run --selftest --ranks 2 --device cpu --transport nccl
    expect_code 2
    expect_err "NCCL needs a card"
    run --selftest --gpus 2 --device cpu
    expect_refusal "--gpus 2 needs GPUs"
    : > file
    run --selftest --ranks 2 --device cpu --out file/report
    expect_code 2
    expect_err "cannot write file/report/selftest.txt"
}

test_selftest_by_torchruns_variables() {
    long_only
    torchrun_says 1 2
    "$program" --selftest --device cpu > other 2> other.errors < /dev/null &
    other=$!
    torchrun_says 0 2
    run --selftest --device cpu
    expect_code 0
    wait $other
    expect_same $? 0 "exit code of rank 1"
    expect_empty other
    expect_lines "$stdout" "started by                  torchrun" 1
    expect_lines "$stdout" "21 of 21 checks passed: 2 ranks over sockets." 1
}

use_mpirun() {
    command -v mpirun > /dev/null || skip "no mpirun here (Debian: openmpi-bin)"
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_mpi_yield_when_idle=1
    export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe \
        OMPI_MCA_mpi_yield_when_idle
}

test_selftest_by_mpirun() {
    long_only
    use_mpirun
    timeout -k 5 200 mpirun -n 2 "$program" --selftest --device cpu > "$stdout" 2> "$stderr"
    code=$?
    expect_code 0
    expect_lines "$stdout" "21 of 21 checks passed: 2 ranks over MPI." 1
}

test_mpirun_starts_ranks() {
    use_mpirun
    # shellcheck disable=SC2086
    timeout -k 5 100 mpirun -n 2 "$program" $tiny --ranks 3 --out out > "$stdout" 2> "$stderr"
    code=$?
    expect_code 2
    expect_err "3 ranks were requested, but Open MPI started 2 (OMPI_COMM_WORLD_SIZE is 2)"
    [ ! -e out ] || fail "something was written"
    for link in auto sockets; do
        # shellcheck disable=SC2086
        timeout -k 5 100 mpirun -n 2 "$program" $tiny --transport $link --out $link > "$stdout" 2> "$stderr"
        code=$?
        expect_code 0
        expect_lines "$stdout" ": held-out loss" 1
    done
    run_tiny --ranks 2 --out ours
    expect_same "$(losses auto | cksum)" "$(losses ours | cksum)" "losses over MPI"
    expect_same "$(losses sockets | cksum)" "$(losses ours | cksum)" "losses over sockets"
}
