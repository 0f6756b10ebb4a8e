#!/usr/bin/env bash
# step-trace.sh: lists the source files that one optimizer step uses, from a recorded trace.
#
# Builds hybrid-train under build/trace with -finstrument-functions, trains a small model and
# records every function that the main thread enters between BEGIN and END (tests/trace/tracer.c
# does that). Prints the files under src/ in the order in which the step first uses them, and their
# number. src/kernels is omitted: the list shows how a step is put together, not its computations.
# Other threads (of the loader and of kernels) are not traced. The same sources give the same trace.
set -uo pipefail

# Recording begins when BEGIN is entered for the CALL-th time and ends when END returns: from the
# request for a batch to the update of the weights.
BEGIN="${TRACE_BEGIN:-hy_engine_gradients}"
END="${TRACE_END:-hy_engine_end_step}"
# An ordinary step: the third of Full (after two of Warmup; the second of Full begins a window),
# with two micro-batches.
CALL="${TRACE_CALL:-5}"
RUN=(--model nano --layers 2 --width 32 --heads 2 --mlp-width 64 --seq-len 32 --batch-size 2
    --grad-accum-steps 2 --builtin-bytes 60000 --lr-warmup-steps 2 --steps 8 --sample-tokens 0
    --threads 1 --device cpu --out none --quiet)

usage() {
    cat << 'END_OF_TEXT'
Usage: scripts/step-trace.sh [--calls] [OPTION ...]

Prints the files under src/ that one optimizer step passes through, in order, and "files: N".

  --calls   print the functions instead, indented by depth, each with its file; "xN": N in a row
  OPTION    further options of hybrid-train, for a step of another kind:
            scripts/step-trace.sh --weights-place pinned --optim-place pinned

Variables: TRACE_BEGIN and TRACE_END, functions at which recording begins (when it is entered) and ends
(when it returns); TRACE_CALL, which call of TRACE_BEGIN is recorded; CC; BUILD (build/trace).
Without --calls TRACE_END=$TRACE_BEGIN shows the whole step, book-keeping included.
END_OF_TEXT
}

die() {
    echo "step-trace.sh: $1" >&2
    exit 1
}

what=files
case "${1:-}" in
-h | --help)
    usage
    exit 0
    ;;
--calls)
    what=calls
    shift
    ;;
esac

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
build="${BUILD:-build/trace}"
program="$build/bin/hybrid-train"
compiler="${CC:-gcc}"
mkdir -p "$build" || exit 1
tracer="$(cd "$build" && pwd)/tracer.o"
trace="$build/trace.txt"

# ---- build --------------------------------------------------------------------------------------
# shellcheck disable=SC2086 # CC may be "ccache gcc"
$compiler -std=c17 -O2 -c tests/trace/tracer.c -o "$tracer" || die "tests/trace/tracer.c does not compile"
# -no-pie: an address in the trace is one in the program. -O1 and no inlining, sibling calls or
# clones: every call in the source is a call in the trace.
make -s "$program" BUILD="$build" CC="$compiler" NVCC= LDFLAGS="-no-pie $tracer" CFLAGS="-g -O1 -w \
    -fno-inline -fno-optimize-sibling-calls -fno-ipa-cp -fno-ipa-sra -fno-partial-inlining -fno-ipa-icf \
    -finstrument-functions -finstrument-functions-exclude-file-list=src/kernels/" \
    1>&2 || die "the instrumented program does not build"

# ---- run ----------------------------------------------------------------------------------------
address_of() { # address_of FUNCTION
    nm "$program" | awk -v name="$1" '
        $3 == name { found++; address = $1 }
        END { if (found == 1) print address; exit found != 1 }' ||
        die "$program does not have exactly one function $1: see BEGIN and END in this script"
}
begin="$(address_of "$BEGIN")" && end="$(address_of "$END")" || exit 1
rm -f "$trace"
TRACE_BEGIN="$begin" TRACE_END="$end" TRACE_CALL="$CALL" TRACE_OUT="$trace" \
    "$program" "${RUN[@]}" "$@" > /dev/null || die "the run failed"
[ -s "$trace" ] || die "$END did not return after call $CALL of $BEGIN: nothing was recorded"

# ---- print --------------------------------------------------------------------------------------
# "DEPTH FUNCTION FILE" for each call, in order.
calls() {
    paste -d ' ' <(cut -d ' ' -f 1 "$trace") \
        <(cut -d ' ' -f 2 "$trace" | addr2line -f -e "$program" | paste -d ' ' - - |
            sed -E 's|/\./|/|g; s| [^ ]*/src/| src/|; s|:.*||')
}
if [ "$what" = calls ]; then
    calls | awk '
        function flush() { if (line != "") print line (count > 1 ? "  x" count : "") }
        {
            now = sprintf("%*s%s  %s", 2 * $1, "", $2, $3)
            if (now == line) { count++; next }
            flush()
            line = now
            count = 1
        }
        END { flush() }'
fi
calls | awk -v what="$what" '
    $3 ~ /^src\// && $3 !~ /^src\/kernels\// && !($3 in seen) {
        seen[$3] = 1
        files++
        if (what == "files") print $3
    }
    END { print "files: " files + 0 }'
