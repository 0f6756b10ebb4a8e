#!/usr/bin/env bash
# bench/vram_phases, ladder, gpu_phases and hold_memory end to end, on a model of small blocks.
#
# The programs are in $HYBRID_BUILD/bench. What the first two write as JSON is read with
# tests/cli/json.awk and held against itself. Ends with the line "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
bench="${HYBRID_BUILD:-$root/build}/bench"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-vram-phases-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
export LC_ALL=C
passed=0
failed=0

for program in vram_phases ladder gpu_phases hold_memory; do
    if [ ! -x "$bench/$program" ]; then
        echo "$bench/$program is missing: build it first"
        echo "0 passed, 1 failed"
        exit 1
    fi
done

# Blocks enough that a ring of three of them is less than the whole, and matrices of 4,096 elements at
# least: smaller ones keep their m and v in fp32 whatever is asked.
tiny=(--device cpu --batch-size 2 --seq-len 16 --set threads=1 --set layers=8 --set width=64
    --set heads=2 --set mlp_width=160 --set builtin_bytes=60000 --set eval_batches=1)

phases() { # phases NAME [OPTION ...]: files NAME.out .err .json .svg
    local name="$scratch/$1"
    shift
    timeout -k 5 200 "$bench/vram_phases" "${tiny[@]}" --model nano --json "$name.json" \
        --svg "$name.svg" "$@" > "$name.out" 2> "$name.err"
}

# More layers and tokens: what training keeps has to be more than the rings that Predict has there.
ladder() { # ladder NAME [OPTION ...]: files NAME.out .err .json
    local name="$scratch/$1"
    shift
    timeout -k 5 200 "$bench/ladder" "${tiny[@]}" --batch-size 4 --seq-len 64 --set layers=16 \
        --steps 9 --json "$name.json" "$@" \
        > "$name.out" 2> "$name.err"
}

values() { awk -f "$root/tests/cli/json.awk" "$scratch/$1.json"; } # "path<TAB>value" lines

# over NAME PROGRAM: the awk program runs at the end of the values, which are in v[path]; it calls
# wrong(TEXT) for what does not hold.
over() {
    values "$1" > "$scratch/values" || return 1
    awk -F '\t' '
        function wrong(text) { print text; bad = 1 }
        function off(planned, measured) { return measured ? (measured - planned) / measured : planned }
        { v[$1] = $2 }
        END { '"$2"'; exit bad }' "$scratch/values"
}

check() { # check NAME: the function of that name must succeed
    if ("$1") > "$scratch/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $1"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
        sed 's/^/      /' "$scratch/log"
    fi
}

# ---- vram_phases -----------------------------------------------------------------------------------

wrong_usage_is_reported() {
    local program wrong named
    while read -r program wrong named; do
        # shellcheck disable=SC2086 # an option and its value
        "$bench/$program" ${wrong/:/ } > "$scratch/said" 2> "$scratch/told"
        [ $? -eq 2 ] || { echo "$program $wrong: not exit code 2"; return 1; }
        grep -q -e "$named" "$scratch/told" || { cat "$scratch/told"; return 1; }
    done << 'END'
vram_phases --bogus:1 --bogus
vram_phases --steps --steps
vram_phases --steps:2000 1024
vram_phases --profiles:reckless reckless
vram_phases --model:no-such no-such
vram_phases --model:, --model.*empty
vram_phases --max-gpu-mem:much max_gpu_mem
vram_phases --types:fp64 optimizer,gradients
vram_phases --ways:dora full,lora,qlora
vram_phases --set:steps KEY=VALUE
vram_phases --set:no_such_key=1 no_such_key
ladder --rows:3 --rows
ladder --batch-size:0 batch_size
gpu_phases --row:ax accepted
hold_memory --leave:much usage
hold_memory --leave usage
hold_memory --keep:1 usage
END
}

every_phase_of_every_profile_is_measured() {
    phases a || { cat "$scratch/a.out" "$scratch/a.err"; return 1; }
    grep -q '^PASS  plans of 3 runs' "$scratch/a.out" || return 1
    over a '
        split("conservative balanced aggressive", profile, " ")
        split("warmup full predict correct", phase, " ")
        for (r = 0; r < 3; r++) {
            if (v[".runs." r ".profile"] != profile[r + 1]) wrong("run " r " is of another profile")
            for (p in phase) {
                at = ".runs." r ".phases." phase[p]
                if (!(v[at ".steps"] > 0)) wrong(at " did not occur")
                if (!(v[at ".device.measured_bytes"] > 0)) wrong(at " kept nothing")
                if (phase[p] != "predict" && !(v[at ".tokens_per_second"] > 0)) wrong(at " has no rate")
            }
        }'
}

# The state on its way back is all of m and v or nothing, and is planned at home elsewhere.
sums_of_classes_are_the_totals() {
    over a '
        split("planned measured", kind, " ")
        for (path in v) {
            if (path !~ /classes\.weights\.place$/) continue
            at = substr(path, 1, index(path, ".classes") - 1)
            split("", sum)
            for (c in v) {
                if (index(c, at ".classes.") != 1 || c !~ /\.place$/) continue
                cell = substr(c, 1, length(c) - 6)
                for (k in kind) sum[v[c], kind[k]] += v[cell "." kind[k] "_bytes"]
            }
            for (k in kind) {
                back = v[at ".coming_back." kind[k] "_bytes"]
                home = v[at ".classes.optim.place"]
                bytes = v[at ".classes.optim." kind[k] "_bytes"]
                if (back != 0 && (home == "device" || back != bytes)) wrong(at ": " back " come back")
                if (sum["device", kind[k]] + back != v[at ".device." kind[k] "_bytes"]) wrong(at " device")
                if (sum["pinned", kind[k]] + 0 != v[at ".pinned." kind[k] "_bytes"]) wrong(at " pinned")
                if (sum["host", kind[k]] + 0 != v[at ".host." kind[k] "_bytes"]) wrong(at " host")
                if (sum["disk", kind[k]] + 0 != v[at ".disk." kind[k] "_bytes"]) wrong(at " disk")
            }
            seen++
        }
        if (seen != 15) wrong(seen " phases instead of 15")'
}

# 128 MiB would allow anything for a model this small: 3 % is asked of it.
plans_hold_within_three_percent() {
    over a '
        for (path in v) {
            if (path !~ /\.planned_bytes$/) continue
            at = substr(path, 1, length(path) - 14)
            share = off(v[path], v[at ".measured_bytes"])
            if (share > 0.03 || share < -0.03) wrong(at " is " 100 * share " % off")
            if ((at ".error_bytes") in v) {
                if (v[at ".error_bytes"] != v[at ".measured_bytes"] - v[path]) wrong(at " error")
                if (v[at ".is_within_bar"] != "true") wrong(at " is beyond the bar")
            }
            seen++
        }
        if (seen != 15 * (4 + 1 + 11) + 3 * 2) wrong(seen " cells")'
}

predict_gives_up_gradients_and_moves_the_optimizer() {
    over a '
        split("host pinned pinned", home, " ")
        for (r = 0; r < 3; r++) {
            at = ".runs." r ".phases."
            if (v[at "full.classes.grads.measured_bytes"] == 0) wrong("no gradients in Full")
            if (v[at "predict.classes.grads.measured_bytes"] != 0) wrong("gradients in Predict")
            if (v[at "predict.classes.optim.place"] != home[r + 1]) wrong("run " r ": m and v stay")
            if (v[at "predict.bytes_moved"] < v[at "full.classes.optim.measured_bytes"])
                wrong("run " r ": fewer bytes moved than m and v have")
        }'
}

the_picture_has_a_piece_for_every_cell() {
    local cells
    cells=$(over a '
        for (path in v) {
            if (path ~ /\.classes\..*\.place$/ && v[path] == "device")
                cells += v[substr(path, 1, length(path) - 6) ".measured_bytes"] > 0
            if (path ~ /coming_back\.measured_bytes$/) cells += v[path] > 0
        }
        print cells') || return 1
    [ "$cells" -gt 60 ] || { echo "only $cells cells"; return 1; }
    [ "$(grep -c 'class="measured"' "$scratch/a.svg")" -eq "$cells" ] || return 1
    [ "$(grep -c 'class="planned"' "$scratch/a.svg")" -eq "$cells" ] || return 1
    tail -n 1 "$scratch/a.svg" | grep -q '^</svg>$'
}

# Each precision level needs less memory than the one before, has the requested types, and fits its plan.
each_precision_level_needs_less_memory() {
    phases t --profiles aggressive --types all || { cat "$scratch/t.out" "$scratch/t.err"; return 1; }
    grep -q '^nano  *aggressive  *predictor .*weights bf16, gradients bf16, m and v 8-bit, predictor 8-bit$' \
        "$scratch/t.out" || { cat "$scratch/t.out"; return 1; }
    over t '
        n = split("fp32 optimizer gradients master predictor", name, " ")
        for (r = 0; r < n; r++) {
            at = ".runs." r
            if (v[at ".types"] != name[r + 1]) wrong(at " is " v[at ".types"])
            kept[r] = v[at ".phases.full.device.measured_bytes"] + v[at ".phases.full.pinned.measured_bytes"]
            if (r > 0 && kept[r] >= kept[r - 1]) wrong(name[r + 1] " keeps as much as " name[r])
            if (off(v[at ".phases.full.device.planned_bytes"], v[at ".phases.full.device.measured_bytes"]) != 0)
                wrong(name[r + 1] " is off its plan")
        }
        # In fp8 the blocks have their codes beside all that.
        if (v[".runs.5.types"] != "fp8") wrong("the last is " v[".runs.5.types"])
        codes = v[".runs.5.phases.full.classes.quants.measured_bytes"]
        if (codes <= 0 || codes != v[".runs.5.phases.full.classes.quants.planned_bytes"]) wrong("codes have " codes " bytes")
        '
}

# The same model trained whole, by adapters, and by adapters beside NF4: each phase keeps less than in the way before.
ways_stand_beside_each_other() {
    phases y --profiles aggressive --ways all || { cat "$scratch/y.out" "$scratch/y.err"; return 1; }
    grep -A 4 '^in use on the device by phase' "$scratch/y.out" |
        grep -qE '^nano  *aggressive  *chosen  *qlora( +[0-9.]+ [KM]iB){6} +[0-9]+$' || { cat "$scratch/y.out"; return 1; }
    grep -q 'aggressive, qlora</text>' "$scratch/y.svg" || { echo "the picture does not name it"; return 1; }
    over y '
        n = split("full lora qlora", way, " ")
        split("warmup full predict correct", phase, " ")
        for (r = 0; r < n; r++) {
            at = ".runs." r
            if (v[at ".way"] != way[r + 1]) wrong(at " is " v[at ".way"])
            for (p in phase) {
                cell = at ".phases." phase[p]
                if (!(v[cell ".steps"] > 0)) wrong(cell " did not occur")
                now = v[cell ".device.measured_bytes"]
                if (v[cell ".device.planned_bytes"] != now) wrong(cell " is off its plan")
                if (r > 0 && now >= kept[phase[p]]) wrong(cell " keeps as much as the way before")
                kept[phase[p]] = now
            }
        }
        grads = v[".runs.1.phases.full.classes.grads.measured_bytes"]
        if (grads <= 0 || 2 * grads > v[".runs.0.phases.full.classes.grads.measured_bytes"])
            wrong("adapters have " grads " bytes of gradients")'
}

# On a device that is too small for fp32 each profile takes what it may: nothing smaller, so that
# prediction is disabled; the optimizer's state; and, if that is not enough, everything.
each_profile_shows_the_types_it_chose() {
    phases w --profiles conservative,balanced --max-gpu-mem 3600KiB &&
        grep -q '^nano  *conservative  *chosen .*m and v fp32, predictor aside' "$scratch/w.out" &&
        grep -q '^nano  *balanced  *chosen .*weights fp32.*m and v 8-bit' "$scratch/w.out" ||
        { cat "$scratch/w.out" "$scratch/w.err"; return 1; }
    phases x --profiles aggressive --max-gpu-mem 2800KiB \
        --set "precision=bf16 precision_correct=same cpu_mem=5MiB" &&
        grep -q '^  types: weights bf16, gradients bf16, m and v 8-bit' "$scratch/x.out" &&
        grep -q '^    optimizer state in 8 bits, gradients in bf16, weights in bf16' "$scratch/x.out" ||
        { cat "$scratch/x.out" "$scratch/x.err"; return 1; }
}

a_phase_that_did_not_occur_fails() {
    phases b --profiles balanced --steps 3
    [ $? -eq 1 ] && grep -q '^FAIL  nano, balanced: phase predict did not occur' "$scratch/b.out"
}

# The same run as the third of a, on a device of 5 MiB: what does not fit passes through, to the bit.
a_smaller_device_changes_places_and_no_bit() {
    phases s --profiles aggressive --max-gpu-mem 5MiB --set small_types=none || { cat "$scratch/s.out" "$scratch/s.err"; return 1; }
    grep -q '^  plan: .*m and v pinned.*updates on gather' "$scratch/s.out" || return 1
    values a | sed -n 's/^\.runs\.2\.val_loss\t//p' > "$scratch/large"
    values s | sed -n 's/^\.runs\.0\.val_loss\t//p' | diff "$scratch/large" - || return 1
    over s '
        split("warmup full predict correct", phase, " ")
        for (p in phase) {
            at = ".runs.0.phases." phase[p]
            if (v[at ".device.measured_bytes"] > 5 * 1048576) wrong(at " has more than 5 MiB")
            if (v[at ".classes.optim.place"] != "pinned") wrong(at ": m and v are elsewhere")
            if (!(v[at ".bytes_moved"] > v[at ".classes.optim.measured_bytes"])) wrong(at " moved little")
        }
        if (!(v[".runs.0.plan.tokens_per_second"] > 0)) wrong("no speed was predicted")
        if (v[".runs.0.plan.pinned.measured_bytes"] < v[".runs.0.phases.full.pinned.measured_bytes"])
            wrong("less is pinned in all than in Full")'
}

what_lives_on_disk_is_found_there() {
    mkdir -p "$scratch/spill"
    phases d --profiles aggressive --set "optim_place=disk offload_folder=$scratch/spill" ||
        { cat "$scratch/d.out" "$scratch/d.err"; return 1; }
    values a | sed -n 's/^\.runs\.2\.val_loss\t//p' > "$scratch/large"
    values d | sed -n 's/^\.runs\.0\.val_loss\t//p' | diff "$scratch/large" - || return 1
    over d '
        at = ".runs.0.phases.full."
        if (v[at "classes.optim.place"] != "disk") wrong("m and v are elsewhere")
        if (v[at "disk.measured_bytes"] < v[at "classes.optim.planned_bytes"]) wrong("too little on disk")'
}

a_device_budget_that_is_too_small_is_reported() {
    phases c --profiles balanced --max-gpu-mem 100k
    [ $? -eq 2 ] && grep -q 'max_gpu_mem' "$scratch/c.err" && [ ! -e "$scratch/c.json" ]
}

# ---- ladder ----------------------------------------------------------------------------------------

rows_come_in_order() {
    ladder l || { cat "$scratch/l.out" "$scratch/l.err"; return 1; }
    cat > "$scratch/expected" << 'END'
fp32
bf16
recompute norm
recompute attention
recompute mlp
recompute all
bf16 gradients
bf16 m and v
8-bit m and v
bf16 master
8-bit predictor
m and v pinned
gradients pinned
weights streamed
activations pinned
update on gather
fp8 matmuls
fp8, recompute all
fp8, streamed
LoRA
QLoRA
QLoRA, recompute all
QLoRA, streamed
Predict: cpu
Predict: pinned
Predict: lookahead
Predict: compress
Predict: drop
conservative
balanced
aggressive
END
    values l | sed -n 's/^\.rows\.[0-9]*\.name\t//p' | diff "$scratch/expected" - || return 1
    # the table has a row for each, below six lines of heading; what a profile chose is indented
    sed -n '7,$p' "$scratch/l.out" | grep -v '^ \|^$\|^PASS' | cut -c 1-20 | sed 's/ *$//' | diff "$scratch/expected" -
}

# Checks name rows: i["bf16"] is the path of that row.
over_rows() {
    over l '
        for (path in v) if (path ~ /^\.rows\.[0-9]+\.name$/) i[v[path]] = substr(path, 1, length(path) - 5)
        '"$1"
}

memory_falls_where_it_must() {
    over_rows '
        n = split("recompute norm<bf16|recompute attention<recompute norm|" \
                  "recompute mlp<recompute norm|recompute all<recompute attention|" \
                  "recompute all<recompute mlp|bf16 gradients<recompute all|" \
                  "bf16 m and v<bf16 gradients|8-bit m and v<bf16 m and v|" \
                  "LoRA<bf16|QLoRA<LoRA|QLoRA, recompute all<QLoRA|QLoRA, streamed<QLoRA, recompute all|" \
                  "bf16 master<8-bit m and v|m and v pinned<8-bit predictor|" \
                  "gradients pinned<m and v pinned|weights streamed<gradients pinned", full, "|")
        for (k = 1; k <= n; k++) {
            split(full[k], side, "<")
            if (v[i[side[1]] ".full.measured_bytes"] >= v[i[side[2]] ".full.measured_bytes"])
                wrong("Full: " full[k] " does not hold")
        }
        if (v[i["8-bit predictor"] ".pinned_bytes"] >= v[i["bf16 master"] ".pinned_bytes"])
            wrong("an 8-bit predictor pins as much")
        n = split("cpu pinned compress drop", strategy, " ")
        for (k = 1; k <= n; k++) {
            if (v[i["Predict: " strategy[k]] ".predict.measured_bytes"] >= \
                v[i["recompute all"] ".predict.measured_bytes"]) wrong(strategy[k] " saves nothing")
            if (v[i["Predict: " strategy[k]] ".full.measured_bytes"] != \
                v[i["recompute all"] ".full.measured_bytes"]) wrong(strategy[k] " changes Full")
        }'
}

what_leaves_the_device_is_found_elsewhere() {
    over_rows '
        p = i["Predict: pinned"]
        if (v[p ".change.pinned_bytes"] != -v[p ".change.predict_bytes"]) wrong("pinned is not what left")
        if (v[p ".change.pinned_bytes"] == 0) wrong("nothing left")
        if (v[i["Predict: cpu"] ".host_bytes"] != v[p ".change.pinned_bytes"]) wrong("host is not what left")
        if (v[i["Predict: drop"] ".change.pinned_bytes"] != 0) wrong("what was dropped is pinned")
        n = split("m and v pinned|gradients pinned|weights streamed|activations pinned", left, "|")
        for (k = 1; k <= n; k++) {
            if (!(v[i[left[k]] ".change.pinned_bytes"] > 0)) wrong(left[k] ": nothing is")
            if (!(v[i[left[k]] ".full.bytes_moved"] > 0)) wrong(left[k] ": nothing moved")
        }'
}

changes_are_against_the_row_that_a_row_is_based_on() {
    over_rows '
        for (name in i) {
            if (name ~ /^(fp32|conservative|balanced|aggressive)$/) continue # based on none
            on = i[v[i[name] ".based_on"]]
            split("full predict", phase, " ")
            for (p in phase) {
                d = v[i[name] "." phase[p] ".measured_bytes"] - v[on "." phase[p] ".measured_bytes"]
                if (d != v[i[name] ".change." phase[p] "_bytes"]) wrong(name ": " phase[p])
                share = off(v[i[name] "." phase[p] ".planned_bytes"], v[i[name] "." phase[p] ".measured_bytes"])
                if (share > 0.03 || share < -0.03) wrong(name " is off its plan in " phase[p])
            }
        }
        if (v[i["aggressive"] ".types"] !~ /^weights fp32.*m and v fp32/) wrong("small types without need")
        if (v[i["Predict: cpu"] ".based_on"] != "recompute all") wrong("Predict: cpu is based on another row")'
}

exact_rows_keep_the_loss_and_lossy_ones_do_not() {
    over_rows '
        for (name in i) {
            if (name ~ /^(fp32|conservative|balanced|aggressive)$/) continue # based on none
            is_exact = name ~ /recompute|pinned$|cpu$|lookahead$|streamed$|gather$/
            same = v[i[name] ".val_loss"] == v[i[v[i[name] ".based_on"]] ".val_loss"]
            if (same != is_exact) wrong(name (same ? " changed nothing" : " changed the loss"))
            if ((v[i[name] ".has_same_loss"] == "true") != same) wrong(name " says otherwise")
        }'
}

a_ladder_without_predict_fails() {
    ladder m --steps 3
    [ $? -eq 1 ] && grep -q '^FAIL  fp32: Full or Predict did not occur' "$scratch/m.out"
}

# ---- gpu_phases ------------------------------------------------------------------------------------

# On a CPU and with another model: rows are made and shown, and not judged.
rows_of_gpu_phases_are_made() {
    local row phase
    for row in e f g; do # as planned: no jumps in so few steps
        timeout -k 5 100 "$bench/gpu_phases" --row $row --device cpu --model nano --folder "$scratch" \
            --set "threads=1 layers=4 seq_len=16 batch_size=2 step_tokens=64 builtin_bytes=60000" \
            > "$scratch/rows.out" 2>&1 || { cat "$scratch/rows.out"; return 1; }
        grep -q "^  row $row: no bar, because its settings were changed" "$scratch/rows.out" &&
            grep -q '^  [1-9][0-9]* tokens/s in Full' "$scratch/rows.out" || { cat "$scratch/rows.out"; return 1; }
    done
    for row in a b c d; do
        timeout -k 5 100 "$bench/gpu_phases" --row $row --device cpu --model nano \
            --set "threads=1 layers=4 seq_len=16 batch_size=2 step_tokens=64 builtin_bytes=60000" \
            > "$scratch/rows.out" 2>&1 || { cat "$scratch/rows.out"; return 1; }
        grep -q "^  row $row: no bar, because its settings were changed" "$scratch/rows.out" || { cat "$scratch/rows.out"; return 1; }
        for phase in warmup full predict correct; do
            grep -q "^  $phase  *[1-9][0-9]* steps" "$scratch/rows.out" || { echo "$row: no $phase"; return 1; }
        done
    done
    [ "$(grep -c '^  step .* predict .* steps predicted\|^  step .* predict .* refused' "$scratch/rows.out")" -ge 3 ] ||
        { cat "$scratch/rows.out"; return 1; }
}

# ---- hold_memory -----------------------------------------------------------------------------------

hold_memory_takes_nothing_by_default() {
    "$bench/hold_memory" > "$scratch/said" && grep -q '^usage: hold_memory --leave MIB' "$scratch/said"
}

# hold NAME [OPTION ...]: becomes hold_memory over a fake card of 140,000 MiB; files NAME.out .err .log
# A sanitizer looks for leaks at its end, which takes seconds: it is killed, and fails, only after many.
hold() {
    local name="$scratch/$1"
    shift
    export FAKE_MIB=140000 FAKE_LARGEST=3000 FAKE_LOG="$name.log" LD_LIBRARY_PATH="$scratch/driver"
    exec timeout -k 40 60 "$bench/hold_memory" "$@" > "$name.out" 2> "$name.err"
}

await() { # await FILE PATTERN
    local tries=0
    until grep -q "$2" "$1" 2> /dev/null; do
        sleep 0.05
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || { echo "$1: no \"$2\""; return 1; }
    done
}

make_driver() {
    mkdir -p "$scratch/driver" &&
        ${CC:-gcc} -shared -fPIC -o "$scratch/driver/libcuda.so.1" \
            "$root/tests/vram_phases/fake_driver.c"
}

# Pieces have 2 MiB at least: what is left is less than one above what was asked for.
all_but_the_rest_is_held_until_sigterm() {
    local holder
    make_driver || return 1
    hold h --leave 16303 &
    holder=$!
    await "$scratch/h.out" '^holding 123696 MiB, 16304 MiB left$' || return 1
    sleep 1.2 # nobody asked: /dev/null at its standard input is no end
    kill -0 "$holder" && [ ! -e "$scratch/h.log" ] || return 1
    kill -TERM "$holder"
    wait "$holder" || { echo "exit code $?"; return 1; }
    grep -q 'all given back' "$scratch/h.log"
}

a_pipe_that_is_closed_ends_it() {
    make_driver || return 1
    await "$scratch/p.out" '^holding 40000 MiB, 100000 MiB left$' | hold p --leave 100000
    [ "${PIPESTATUS[*]}" = "0 0" ] && grep -q 'all given back' "$scratch/p.log"
}

a_missing_card_is_reported() {
    make_driver || return 1
    (hold n --leave 1 --device 3)
    [ $? -eq 1 ] && grep -q 'there is no card with this number' "$scratch/n.err"
}

check wrong_usage_is_reported
check every_phase_of_every_profile_is_measured
check sums_of_classes_are_the_totals
check plans_hold_within_three_percent
check predict_gives_up_gradients_and_moves_the_optimizer
check the_picture_has_a_piece_for_every_cell
check each_precision_level_needs_less_memory
check ways_stand_beside_each_other
check each_profile_shows_the_types_it_chose
check a_phase_that_did_not_occur_fails
check a_smaller_device_changes_places_and_no_bit
check what_lives_on_disk_is_found_there
check a_device_budget_that_is_too_small_is_reported
check rows_come_in_order
check memory_falls_where_it_must
check what_leaves_the_device_is_found_elsewhere
check changes_are_against_the_row_that_a_row_is_based_on
check exact_rows_keep_the_loss_and_lossy_ones_do_not
check a_ladder_without_predict_fails
check rows_of_gpu_phases_are_made
check hold_memory_takes_nothing_by_default
check all_but_the_rest_is_held_until_sigterm
check a_pipe_that_is_closed_ends_it
check a_missing_card_is_reported

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
