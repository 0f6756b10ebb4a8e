#!/usr/bin/env bash
# The library as a stranger gets it: what it exports, what it installs, whether a program outside the
# tree builds against it; and what holds for the tree itself: modules look only up, make is idempotent.
#
# Started by tests/run.sh after a build; HYBRID_BUILD is where that build lies. Ends with the line
# "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
out="${HYBRID_BUILD:-$root/build}"
modules=(base kernels comm memory formats tokenizer jinja data model hub optim phases reward config report state plan engine setup record infer generate trainer custom selftest)
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-package-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
prefix="$scratch/usr"
passed=0
failed=0

# The same variables as the make that started us (they come quoted for a shell), but not its jobs.
variables=()
eval "variables=(${HYBRID_MAKE_ARGS:-})"
build() {
    env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -C "$root" --no-print-directory "${variables[@]}" "$@"
}

check() { # check NAME: the function of that name must succeed
    if "$1" > "$scratch/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $1"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
        sed 's/^/      /' "$scratch/log"
    fi
}

# Functions that the headers declare, but for those that they define themselves.
declared_functions() {
    cat "$root"/include/*.h | ${CC:-gcc} -E -P -I"$root/include" -x c - | tr '\n' ' ' |
        sed -E 's/static inline [^(]*\(//g' | grep -o '\bhy_[a-z0-9_]*(' | tr -d '(' | sort -u
}

the_shared_library_exports_the_public_header_and_nothing_else() {
    nm -D --defined-only "$out/lib/libhybrid.so" | awk '{ print $3 }' | sort -u > "$scratch/exported"
    declared_functions > "$scratch/declared"
    [ -s "$scratch/declared" ] && diff "$scratch/declared" "$scratch/exported"
}

the_shared_library_needs_no_symbol_that_its_libraries_lack() {
    local undefined
    undefined="$(ldd -r "$out/lib/libhybrid.so" 2>&1 | grep 'undefined symbol')"
    echo "$undefined"
    [ -z "$undefined" ]
}

openblas_is_not_linked() {
    local file needed
    for file in "$out/lib/libhybrid.so" "$out/bin/hybrid-train"; do
        needed="$(ldd "$file")" || return 1
        ! grep -i openblas <<< "$needed" || return 1
    done
}

a_module_includes_only_modules_before_it() {
    local wrong=0 seen="" module other file
    for module in "${modules[@]}"; do
        seen="$seen $module"
        while IFS=: read -r file other; do
            [[ " $seen " == *" $other "* ]] || { echo "$file includes $other/"; wrong=1; }
        done < <(grep -roE --include='*.[ch]' '^#include "[a-z]+/' "$root/src/$module" |
            sed -E 's/#include "([a-z]+)\//\1/')
    done
    [ "$wrong" = 0 ]
}

the_programs_include_the_public_header_alone() {
    local others
    others="$(grep -rnE --include='*.[ch]' '^#include "' "$root/src/cli" "$root/examples" |
        grep -vE '"(cli/[a-z_]+|hybrid|hybrid_types|hybrid_tokenizer|hybrid_report|hybrid_tools|hybrid_generate)\.h"' |
        grep -v 'src/cli/hybrid_serve.c:.*"serve/serve.h"')"
    echo "$others"
    [ -z "$others" ]
}

the_server_uses_base_and_the_public_headers() {
    local others
    others="$(grep -rnE --include='*.[ch]' '^#include "' "$root/src/serve" |
        grep -vE '"((base|serve)/[a-z0-9_]+|hybrid|hybrid_generate)\.h"')"
    echo "$others"
    [ -z "$others" ]
}

a_second_make_does_nothing() {
    build all > /dev/null 2>&1 && build all > "$scratch/second" 2>&1
    cat "$scratch/second"
    grep -q 'Nothing to be done' "$scratch/second" && ! grep -qE '^  [A-Z]+ ' "$scratch/second"
}

installing_dependencies_is_silent_when_all_are_there() {
    # Open MPI is asked for and not needed.
    [ -z "$("$root/scripts/install-deps.sh" --tests 2>&1 | grep -v 'Open MPI\|openmpi-bin')" ]
}

a_missing_libconfig_is_named_with_its_package() {
    ! build lib BUILD="$scratch/nothing" LIBCONFIG_LIBS=-lconfig-that-is-not-here > "$scratch/said" 2>&1 || return 1
    cat "$scratch/said"
    grep -q 'libconfig.h, or its library, is missing: package libconfig-dev' "$scratch/said"
}

without_libmicrohttpd_only_the_server_is_left_out() {
    build -n all BUILD="$scratch/nothing" MICROHTTPD_LIBS= > "$scratch/said" 2>&1 || { tail "$scratch/said"; return 1; }
    grep -q 'hybrid-serve was left out: .*libmicrohttpd-dev' <(tr -d '\\\n' < "$scratch/said") &&
        grep -q 'bin/hybrid-chat' "$scratch/said" && ! grep -q 'bin/hybrid-serve\|src/serve' "$scratch/said"
}

# What `make run` would build, with an nvcc that knows sm_89 and sm_120 and an nvidia-smi that answers $1.
run_with_card() {
    mkdir -p "$scratch/card"
    printf '#!/bin/sh\nprintf "%%s\\n" compute_75 compute_89 compute_120\n' > "$scratch/card/nvcc"
    printf '#!/bin/sh\n%s\n' "$1" > "$scratch/card/nvidia-smi"
    chmod +x "$scratch/card/"*
    env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u CUDA_ARCHS PATH="$scratch/card:$PATH" \
        make -C "$root" -n run BUILD="$scratch/build" NVCC="$scratch/card/nvcc" > "$scratch/run" 2>&1
}

make_run_compiles_for_the_cards_that_are_here() {
    run_with_card 'printf "12.0\n8.9\n8.9\n"' || { tail "$scratch/run"; return 1; }
    grep -q 'arch=compute_89,code=sm_89 -gencode arch=compute_120,code=sm_120' "$scratch/run" || return 1
    ! grep -q 'sm_75' "$scratch/run" || return 1
    # Neither the shared library nor what is in no program.
    ! grep -qE 'libhybrid\.so|bench/|examples/' "$scratch/run" || return 1
    # A card that nvcc does not know leaves the choice as it is.
    run_with_card 'echo 13.7' && grep -q 'code=sm_75' "$scratch/run"
}

# A backend for more cards than these is kept for all of them.
make_run_keeps_what_was_built_for_more_cards() {
    mkdir -p "$scratch/build/lib" "$scratch/build/obj/release"
    touch "$scratch/build/lib/libhybrid_cuda.so"
    echo "75 89 120" > "$scratch/build/obj/release/built-for"
    run_with_card 'echo 8.9' && grep -q 'CUDA_ARCHS="75 89 120"' "$scratch/run"
}

without_a_card_make_run_compiles_no_backend() {
    if compgen -G '/dev/nvidia[0-9]*' > /dev/null || [ -e /dev/dxg ]; then
        echo "a card is here"
        return 0
    fi
    run_with_card 'exit 9' && ! grep -qE 'code=sm_|libhybrid_cuda' "$scratch/run"
}

# hybrid-train's own flags are looked at by tests/cli; its keys are too many for a page.
every_program_has_a_manual_page_with_all_its_flags() {
    local program page flag wrong=0
    for program in "$out"/bin/hybrid-*; do
        page="$root/docs/man/$(basename "$program").1"
        [ -f "$page" ] || { echo "$page is missing"; return 1; }
        [ "$(basename "$program")" != hybrid-train ] || continue
        for flag in $("$program" --help | sed -nE 's/^ +(-[a-zA-Z], )?(--[a-z-]+).*/\2/p'); do
            grep -q -e "$flag" <(sed 's/\\-/-/g' "$page") || { echo "$page does not name $flag"; wrong=1; }
        done
    done
    [ "$wrong" = 0 ]
}

manual_pages_are_well_formed() {
    local page said
    command -v groff > /dev/null || { echo "no groff here"; return 0; }
    for page in "$root"/docs/man/*.1; do
        said="$(groff -man -ww -Tutf8 -rLL=100n "$page" 2>&1 > /dev/null)"
        [ -z "$said" ] || { echo "$said"; return 1; }
    done
}

install_puts_everything_under_the_prefix() {
    build install PREFIX="$prefix" || return 1
    local file
    for file in bin/hybrid-train lib/libhybrid.a lib/libhybrid.so lib/libhybrid.so.0 \
        lib/pkgconfig/hybrid.pc include/hybrid.h include/hybrid_types.h \
        include/hybrid_tokenizer.h include/hybrid_report.h include/hybrid_tools.h include/hybrid_generate.h \
        include/hybrid_sized.h include/hybrid_old_names.h; do
        [ -e "$prefix/$file" ] || { echo "$file is missing"; return 1; }
    done
    "$prefix/bin/hybrid-train" --version
}

destdir_goes_in_front_of_the_prefix() {
    build install PREFIX=/usr DESTDIR="$scratch/stage" &&
        [ -x "$scratch/stage/usr/bin/hybrid-train" ] &&
        grep -q '^prefix=/usr$' "$scratch/stage/usr/lib/pkgconfig/hybrid.pc"
}

# A program that knows only what was installed.
write_program() {
    cat > "$scratch/outside.c" << 'END'
#include <hybrid.h>
#include <stdio.h>

int main(void) {
    int64_t parameters = 0;
    if (hy_model_parameters("nano", &parameters) != HY_OK) {
        fprintf(stderr, "%s\n", hy_error_message());
        return 1;
    }
    printf("%s: %lld parameters\n", HYBRID_VERSION, (long long)parameters);
    return parameters > 0 ? 0 : 1;
}
END
}

pc() { PKG_CONFIG_PATH="$prefix/lib/pkgconfig" pkg-config "$@"; }

a_program_outside_builds_with_the_shared_library() {
    # shellcheck disable=SC2046
    write_program && ${CC:-gcc} -std=c99 -Wall -Wextra -Werror -pedantic "$scratch/outside.c" \
        -o "$scratch/shared" $(pc --cflags --libs hybrid) &&
        ldd "$scratch/shared" | grep libhybrid.so.0 &&
        LD_LIBRARY_PATH="$prefix/lib" "$scratch/shared"
}

a_program_outside_builds_with_the_static_library() {
    # shellcheck disable=SC2046
    write_program && ${CC:-gcc} "$scratch/outside.c" -o "$scratch/static" $(pc --cflags hybrid) \
        $(pc --static --libs hybrid | sed 's/-lhybrid/-l:libhybrid.a/') &&
        ! ldd "$scratch/static" | grep libhybrid && "$scratch/static"
}

# A program that was built with the headers of an older or a newer version: $1 is the sed script that
# makes them of today's, $2 a flag of the compiler. It looks at the bytes behind its own structs.
a_program_built_with_other_headers_fits() {
    mkdir -p "$scratch/other"
    cp "$prefix"/include/*.h "$scratch/other/" && sed -i -f "$1" "$scratch/other/hybrid.h" || return 1
    ! cmp -s "$scratch/other/hybrid.h" "$prefix/include/hybrid.h" || return 1
    cat > "$scratch/fits.c" << 'END'
#include <hybrid.h>
#include <stdio.h>
#include <string.h>

static struct { hy_summary it; unsigned char beyond[64]; } summary;
static struct { hy_step_info it; unsigned char beyond[64]; } step;
static struct { hy_plan_facts it; unsigned char beyond[64]; } facts;
static size_t called_with;

static void on_step(void *user, const hy_step_info *info) {
    (void)user;
    called_with = info->size;
}
static int is_untouched(const unsigned char *beyond) {
    for (int i = 0; i < 64; i++)
        if (beyond[i] != 0xA5) return 0;
    return 1;
}
static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, hy_error_message());
    return 1;
}
int main(void) {
    hy_observer observer = {.on_step = on_step};
    hy_config *config;
    hy_trainer *trainer;
    const char *keys[][2] = {{"model", "nano"}, {"layers", "1"}, {"seq_len", "32"}, {"steps", "2"},
                             {"batch_size", "2"}, {"out", "none"}, {"builtin_bytes", "60000"},
                             {"device", "cpu"}, {"eval_batches", "1"}};
    memset(&summary, 0xA5, sizeof summary);
    memset(&step, 0xA5, sizeof step);
    memset(&facts, 0xA5, sizeof facts);
    if (hy_abi() != HYBRID_ABI || hy_config_create(&config) != HY_OK) return fail("start");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (hy_config_set(config, keys[i][0], keys[i][1], HY_FROM_CALLER) != HY_OK) return fail("keys");
    if (hy_trainer_create(config, &observer, &trainer) != HY_OK) return fail("create");
    if (hy_trainer_step(trainer, &step.it) != HY_OK) return fail("step");
    if (hy_trainer_run(trainer) != HY_OK) return fail("run");
    hy_trainer_summary(trainer, &summary.it);
    hy_trainer_plan_facts(trainer, &facts.it);
    if (!is_untouched(summary.beyond) || !is_untouched(step.beyond) || !is_untouched(facts.beyond))
        return fail("bytes behind a struct were written");
    if (step.it.step != 1 || !(step.it.loss > 0) || summary.it.parameters < 1 || !facts.it.fits)
        return fail("a member is wrong");
#ifdef NEWER
    if (HY_HAS_MEMBER(&summary.it, later) || HY_HAS_MEMBER(&step.it, later) || !HY_HAS_MEMBER(&step.it, gpu))
        return fail("which members are known");
    if (summary.it.later[0] != 0 || summary.it.later[3] != 0 || step.it.later[0] != 0)
        return fail("an unknown member is not zero");
    if (called_with >= sizeof step.it) return fail("size in a callback");
#else
    if (called_with <= sizeof step.it) return fail("size in a callback");
#endif
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
    return 0;
}
END
    # shellcheck disable=SC2046
    ${CC:-gcc} -std=c99 -Wall -Wextra -Werror $2 -I"$scratch/other" "$scratch/fits.c" \
        -o "$scratch/fits" $(pc --cflags --libs hybrid) &&
        LD_LIBRARY_PATH="$prefix/lib" "$scratch/fits"
}

a_program_built_with_shorter_structs_fits() {
    cat > "$scratch/older.sed" << 'END'
/^typedef struct hy_summary {/,/^} hy_summary;/ { /steps_total/,/is_stopped_early/d }
/^typedef struct hy_step_info {/,/^} hy_step_info;/ { /^    double lr;/,/hy_gpu_state gpu/d }
/^typedef struct hy_plan_facts {/,/^} hy_plan_facts;/ { /disk_bytes/,/no_prediction/d }
END
    a_program_built_with_other_headers_fits "$scratch/older.sed" -UNEWER
}

a_program_built_with_longer_structs_fits() {
    cat > "$scratch/newer.sed" << 'END'
s/^} \(hy_summary\|hy_step_info\|hy_plan_facts\);/    double later[4];\n&/
END
    a_program_built_with_other_headers_fits "$scratch/newer.sed" -DNEWER
}

# Written for the headers before names changed and before `size`.
an_older_program_compiles_and_runs() {
    cat > "$scratch/older.c" << 'END'
#include <hybrid.h>
#include <stdio.h>

static hy_status forward(void *user, int64_t batch, double *loss_sum, int64_t *counted) {
    (void)batch;
    *loss_sum = *(float *)user * *(float *)user;
    *counted = 1;
    return HY_OK;
}
static float weight = 3, grad;
static hy_status backward(void *user, int64_t batch, double scale, double *loss_sum, int64_t *counted) {
    grad += (float)(2 * scale * weight);
    return forward(user, batch, loss_sum, counted);
}
int main(void) {
    hy_parameter list[] = {{.name = "w", .weights = &weight, .grads = &grad}};
    hy_own_model model = {.parameters = {.list = list, .count = 1}, .user = &weight,
                          .forward = forward, .backward = backward};
    hy_config *config;
    hy_trainer *trainer;
    hy_summary s;
    hy_savings savings = {0};
    hy_plan_facts facts;
    if (hy_config_create(&config) != HY_OK || hy_config_use_own(config) != HY_OK ||
        hy_config_set(config, "steps", "20", HY_FROM_CALLER) != HY_OK ||
        hy_config_set(config, "out", "none", HY_FROM_CALLER) != HY_OK ||
        hy_config_set(config, "lr", "0.1", HY_FROM_CALLER) != HY_OK ||
        hy_trainer_create_own(config, &model, NULL, &trainer) != HY_OK ||
        hy_trainer_run(trainer) != HY_OK || hy_trainer_savings(trainer, &savings) != HY_OK) {
        fprintf(stderr, "%s\n", hy_error_message());
        return 1;
    }
    hy_trainer_summary(trainer, &s);
    hy_trainer_plan_facts(trainer, &facts);
    printf("%lld steps, weight %g%s\n", (long long)s.steps, weight, facts.aside);
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
    return s.steps > 0 && weight < 2.5f && HY_CHECK_TOLD == 0 ? 0 : 1;
}
END
    # shellcheck disable=SC2046
    ${CC:-gcc} -std=c99 -Wall -Wextra -Werror "$scratch/older.c" -o "$scratch/older" \
        $(pc --cflags --libs hybrid) && LD_LIBRARY_PATH="$prefix/lib" "$scratch/older"
}

the_header_is_fine_for_c_plus_plus() {
    if ! command -v g++ > /dev/null; then
        echo "no g++ here"
        return 0
    fi
    write_program && g++ -x c++ -std=c++11 -Wall -Wextra -Werror -fsyntax-only \
        -I"$prefix/include" "$scratch/outside.c" &&
        g++ -x c++ -std=c++11 -Wall -Wextra -Werror -DHYBRID_NO_OLD_NAMES -fsyntax-only \
            -I"$prefix/include" -include hybrid_tools.h -include hybrid_report.h "$scratch/outside.c"
}

uninstall_leaves_nothing_behind() {
    build uninstall PREFIX="$prefix" || return 1
    local left
    left="$(find "$prefix" ! -type d)"
    echo "$left"
    [ -z "$left" ]
}

check the_shared_library_exports_the_public_header_and_nothing_else
check the_shared_library_needs_no_symbol_that_its_libraries_lack
check openblas_is_not_linked
check a_module_includes_only_modules_before_it
check the_programs_include_the_public_header_alone
check the_server_uses_base_and_the_public_headers
check a_second_make_does_nothing
check installing_dependencies_is_silent_when_all_are_there
check a_missing_libconfig_is_named_with_its_package
check without_libmicrohttpd_only_the_server_is_left_out
check make_run_compiles_for_the_cards_that_are_here
check make_run_keeps_what_was_built_for_more_cards
check without_a_card_make_run_compiles_no_backend
check every_program_has_a_manual_page_with_all_its_flags
check manual_pages_are_well_formed
check install_puts_everything_under_the_prefix
check destdir_goes_in_front_of_the_prefix
check a_program_outside_builds_with_the_shared_library
check a_program_outside_builds_with_the_static_library
check a_program_built_with_shorter_structs_fits
check a_program_built_with_longer_structs_fits
check an_older_program_compiles_and_runs
check the_header_is_fine_for_c_plus_plus
check uninstall_leaves_nothing_behind

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
