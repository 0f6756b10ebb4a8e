/* test_ranks_mpi.c: ranks started by mpirun train over MPI to the same bits as ranks over sockets.
 *
 * The program starts itself under mpirun (mpi_rig.h), as "test_ranks_mpi VARIANT STAGE FOLDER". If
 * mpirun or libhybrid_mpi.so is missing, the tests are skipped with a message. */
#include "mpi_rig.h"
#include "ranks_variants.h"

typedef struct mpi_case {
    int ranks, stage;
    const char *variant;
} mpi_case;

static const mpi_case cases[] = {{2, 3, "outer"}, {4, 1, "plain"}, {4, 3, "muon"}};

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

/* ---- as a rank of mpirun --------------------------------------------------------------------- */

static int as_rank(const char *name, int stage, const char *into) {
    static run_steps mine;
    char words[1024], out[600], path[600];
    hy_rank_info who;
    require(hy_find_rank(&who) == HY_OK && who.count > 1);
    snprintf(out, sizeof out, "%s/run", into);
    snprintf(path, sizeof path, "%s/run_steps-%d", into, who.rank);
    snprintf(words, sizeof words, "%s transport mpi", variant_named(name)->words);
    ranks_run run = {
        .count = who.count, .stage = stage, .words = RANKS_RUN, .more = words, .out = out};
    require(run_as_rank(&run, who.rank, &mine) == HY_OK);
    require(hy_file_write_atomic(path, (const char *)&mine, sizeof mine) == HY_OK);
    return 0;
}

/* ---- as a test ------------------------------------------------------------------------------- */

static run_steps course_of(int rank) {
    char path[300], *data;
    size_t size;
    run_steps out;
    snprintf(path, sizeof path, "%s/run_steps-%d", folder, rank);
    must(hy_file_read(path, &data, &size));
    ck_assert_uint_eq(size, sizeof out);
    memcpy(&out, data, sizeof out);
    free(data);
    return out;
}

START_TEST(ranks_over_mpi_train_what_ranks_over_sockets_do) {
    const mpi_case *c = &cases[_i];
    char arguments[400], out[300], ours[300];
    hy_text output = {0};
    snprintf(arguments, sizeof arguments, "%s %d '%s'", c->variant, c->stage, folder);
    int code = run_under_mpi(c->ranks, arguments, &output);
    ck_assert_msg(code == 0, "exit code %d: %s", code, hy_text_string(&output));
    hy_text_free(&output);
    snprintf(out, sizeof out, "%s/run", folder);
    snprintf(ours, sizeof ours, "%s/sockets", folder);
    ranks_run run = {.count = c->ranks,
                     .stage = c->stage,
                     .words = RANKS_RUN,
                     .more = variant_named(c->variant)->words,
                     .out = ours};
    run_steps expected = train(&run);
    for (int r = 0; r < c->ranks; r++) {
        run_steps mine = course_of(r);
        must_be_same(&mine, &expected, "over MPI");
    }
    must_have_same_checkpoint(out, ours);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("ranks_mpi");
    TCase *c = tcase_create("mpi");
    tcase_set_timeout(c, 300);
    tcase_add_checked_fixture(c, make_folder, drop_folder);
    if (has_mpi()) {
        tcase_add_loop_test(c, ranks_over_mpi_train_what_ranks_over_sockets_do, 0,
                            sizeof cases / sizeof cases[0]);
    } else {
        say_mpi_is_missing();
    }
    suite_add_tcase(s, c);
    return s;
}

int main(int argc, char **argv) {
    return argc == 4 ? as_rank(argv[1], atoi(argv[2]), argv[3]) : run_suite(suite());
}
