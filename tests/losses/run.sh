#!/usr/bin/env bash
# The losses of a few small runs are those recorded here, bit for bit.
#
# Bits depend on processor, matrix library, compiler and C library, so a record is named after them:
# tests/losses/KIND.txt, where `scripts/losses.sh --kind BUILD` says KIND. Where there is none, nothing
# is tested. HYBRID_UPDATE_LOSSES=1 writes the record of this kind: do that when losses are meant to
# change, and say why in the commit. scripts/losses.sh compares two builds in many more runs.
#
# Started by tests/run.sh after a build; HYBRID_BUILD is where it lies. Ends with "N passed, N failed".
# shellcheck disable=SC2317 # check calls the tests by name
set -uo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
build="${HYBRID_BUILD:-$root/build}"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-losses-test-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0

runs=aggressive,conservative-moves,streaming-moves,disk-moves,accum-recompute,activations-pinned
runs+=,optim-8bit-streaming,optim-bf16,bf16,bf16-master-moves,fp16,mixed-phases,predictor-line
runs+=,offload-compress,offload-drop,rollback,tail,window,gpt2-shape,packing-accum,fine-tuning
runs+=,resume-moves,resumed-moves,library-steps,library-model,library-loop

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
}

skip() { # skip WHY
    echo "skipped: $1"
    finish
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

losses_are_those_recorded() { "$root/scripts/losses.sh" --compare "$record" "$scratch/now"; }

# The test itself: a digit changed, a step and a run missing.
changed_losses_are_noticed() {
    local edit
    for edit in '/^tail step=9 /s/\(loss=[0-9]*\.[0-9]*\)[0-9] /\1 /' '/^window step=4 /d' '/^packing/d'; do
        sed "$edit" "$scratch/now" > "$scratch/edited"
        "$root/scripts/losses.sh" --compare "$scratch/edited" "$scratch/now" > "$scratch/said" && return 1
        cat "$scratch/said"
        grep -q '^1 of [0-9]* runs differ' "$scratch/said" || return 1
    done
}

case "${VARIANT:-release}${HYBRID_MAKE_ARGS:-}" in
release*CFLAGS=* | release*HY_NATIVE=*) skip "built with other flags than the record" ;;
release*) ;;
*) skip "the record is of the release build" ;;
esac
if ! kind="$("$root/scripts/losses.sh" --kind "$build")"; then
    echo "0 passed, 1 failed"
    exit 1
fi
record="$here/$kind.txt"
if [ -n "${HYBRID_UPDATE_LOSSES:-}" ]; then
    "$root/scripts/losses.sh" --only "$runs" "$build" "$record" || exit 1
fi
[ -r "$record" ] || skip "there is no record of losses for $kind"
if ! "$root/scripts/losses.sh" --only "$runs" "$build" "$scratch/now"; then
    failed=1
    finish
fi
check losses_are_those_recorded
check changed_losses_are_noticed
finish
