/* test_comm_ranks.c: finding the rank of a process from the variables of launchers. */
#include "harness.h"

#include "comm/ranks.h"
#include "comm/slurm.h"

extern char **environ;

/* ---- environments ---------------------------------------------------------------------------- */

typedef struct environment {
    const char *name;
    const char *set; /* "NAME=value NAME=value" */
    hy_ranks_source source;
    int rank, count, local_rank, local_count;
    const char *address;
    int port; /* 0: any */
} environment;

#define STEP "SLURM_JOB_ID=71 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[07-09] "

static const environment good[] = {
    {"nothing", "", HY_RANKS_ALONE, 0, 1, 0, 1, "", 0},
    {"empty values", "RANK= WORLD_SIZE=", HY_RANKS_ALONE, 0, 1, 0, 1, "", 0},
    {"own launcher",
     "HYBRID_RANK=1 HYBRID_RANKS=4 HYBRID_LOCAL_RANK=1 HYBRID_LOCAL_RANKS=2 "
     "HYBRID_ADDRESS=10.0.0.1:7000",
     HY_RANKS_LAUNCHER, 1, 4, 1, 2, "10.0.0.1", 7000},
    {"own launcher, IPv6",
     "HYBRID_RANK=0 HYBRID_RANKS=2 HYBRID_LOCAL_RANK=0 HYBRID_LOCAL_RANKS=2 "
     "HYBRID_ADDRESS=[fd00::1]:7000",
     HY_RANKS_LAUNCHER, 0, 2, 0, 2, "fd00::1", 7000},
    {"torchrun",
     "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=29500",
     HY_RANKS_TORCHRUN, 5, 8, 1, 4, "a", 29500},
    {"torchrun that listens on its port itself",
     "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=29500 "
     "TORCHELASTIC_USE_AGENT_STORE=True",
     HY_RANKS_TORCHRUN, 5, 8, 1, 4, "a", 29501},
    {"torchrun's without a local count",
     "RANK=1 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=29500", HY_RANKS_TORCHRUN, 1, 8, 1,
     0, "a", 29500},
    {"torchrun inside srun",
     STEP "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 "
          "LOCAL_WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=29500",
     HY_RANKS_TORCHRUN, 5, 8, 1, 4, "a", 29500},
    {"one rank of torchrun needs no address", "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0", HY_RANKS_TORCHRUN,
     0, 1, 0, 0, "", 0},
    {"Open MPI on one machine",
     "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=1647378433",
     HY_RANKS_OPENMPI, 1, 2, 1, 2, "127.0.0.1", 0},
    {"Open MPI on two machines: MPI knows where",
     "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=1647378433",
     HY_RANKS_OPENMPI, 2, 4, 0, 2, "", 0},
    {"Open MPI on two machines with an address",
     "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=2 HYBRID_ADDRESS=head:4000",
     HY_RANKS_OPENMPI, 2, 4, 0, 2, "head", 4000},
    {"mpirun inside a step that started its daemons",
     STEP "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 OMPI_COMM_WORLD_RANK=3 "
          "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4",
     HY_RANKS_OPENMPI, 3, 4, 1, 4, "127.0.0.1", 0},
    {"PMI", "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=3 MPI_LOCALNRANKS=4", HY_RANKS_PMI, 3, 4, 3, 4,
     "127.0.0.1", 0},
    {"srun",
     STEP "SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_NODEID=1 "
          "SLURM_STEP_TASKS_PER_NODE=2(x2)",
     HY_RANKS_SLURM, 2, 4, 0, 2, "node07", 0},
    {"srun that speaks PMI",
     STEP "SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=0 PMI_RANK=2 PMI_SIZE=4", HY_RANKS_SLURM, 2,
     4, 0, 0, "node07", 0},
    {"srun with MASTER_ADDR from the script",
     STEP "SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=0 MASTER_ADDR=node07-ib MASTER_PORT=1234",
     HY_RANKS_SLURM, 2, 4, 0, 0, "node07-ib", 1234},
    {"a script of sbatch",
     "SLURM_JOB_ID=71 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_JOB_NODELIST=node[07-09]",
     HY_RANKS_ALONE, 0, 1, 0, 1, "", 0},
    {"a script of sbatch whose step is numbered",
     "SLURM_JOB_ID=71 SLURM_STEP_ID=4294967291 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0",
     HY_RANKS_ALONE, 0, 1, 0, 1, "", 0},
    {"a shell of salloc", "SLURM_JOB_ID=71 SLURM_NTASKS=4 SLURM_JOB_NODELIST=node[07-09]",
     HY_RANKS_ALONE, 0, 1, 0, 1, "", 0},
};

typedef struct refusal {
    const char *set, *first, *second; /* what the message holds */
} refusal;

#define OURS "HYBRID_LOCAL_RANK=0 HYBRID_LOCAL_RANKS=1 "

static const refusal bad[] = {
    {"RANK=0", "RANK is set", "WORLD_SIZE is not"},
    {"WORLD_SIZE=4 RANK=0", "torchrun", "LOCAL_RANK is not"},
    {"LOCAL_WORLD_SIZE=4", "LOCAL_WORLD_SIZE is set", "RANK is not"},
    {"RANK=0 WORLD_SIZE=4 LOCAL_RANK=0", "RANK is set", "MASTER_ADDR is not"},
    {"RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=a", "MASTER_ADDR is set", "MASTER_PORT is not"},
    {"RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=70000", "MASTER_PORT is \"70000\"",
     "65535"},
    {"RANK=4 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=1", "RANK is 4",
     "WORLD_SIZE is 4"},
    {"RANK=-1 WORLD_SIZE=4 LOCAL_RANK=0", "RANK is \"-1\"", "0 to"},
    {"RANK=one WORLD_SIZE=4 LOCAL_RANK=0", "RANK is \"one\"", "a number"},
    {"RANK=1x WORLD_SIZE=4 LOCAL_RANK=0", "RANK is \"1x\"", "a number"},
    {"RANK=1 WORLD_SIZE=0 LOCAL_RANK=0", "WORLD_SIZE is \"0\"", "1 to"},
    {"RANK=1 WORLD_SIZE=257 LOCAL_RANK=0", "WORLD_SIZE is \"257\"", "1 to 256"},
    {"RANK=1 WORLD_SIZE=99999999999999999999 LOCAL_RANK=0", "WORLD_SIZE is", "1 to"},
    {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=1", "LOCAL_RANK is 1",
     "LOCAL_WORLD_SIZE is 1"},
    {"HYBRID_RANK=0 HYBRID_RANKS=2 " OURS, "HYBRID_RANK is set", "HYBRID_ADDRESS is not"},
    {"HYBRID_RANK=0 HYBRID_RANKS=2 " OURS "HYBRID_ADDRESS=host", "HYBRID_ADDRESS is \"host\"",
     "host:port"},
    {"HYBRID_RANK=0 HYBRID_RANKS=2 " OURS "HYBRID_ADDRESS=::1:80", "HYBRID_ADDRESS is \"::1:80\"",
     "host:port"},
    {"HYBRID_RANK=0 HYBRID_RANKS=2 " OURS "HYBRID_ADDRESS=a:b", "HYBRID_ADDRESS", "host:port"},
    {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0",
     "OMPI_COMM_WORLD_RANK is set", "OMPI_COMM_WORLD_LOCAL_SIZE is not"},
    {"PMI_RANK=1", "PMI_RANK is set", "PMI_SIZE is not"},
    {"RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=1 OMPI_COMM_WORLD_RANK=1 "
     "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=4",
     "RANK is 0 and WORLD_SIZE is 4", "OMPI_COMM_WORLD_RANK is 1"},
    {STEP "SLURM_PROCID=1", "SLURM_PROCID is set", "SLURM_NTASKS is not"},
    {"SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0", "SLURM_STEP_NODELIST",
     "HYBRID_ADDRESS"},
    {"SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[ SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0",
     "SLURM_STEP_NODELIST is \"n[\"", "list of nodes"},
};

/* Every variable of a launcher; those of Check stay. */
static void forget_launchers(void) {
    static const char *const beginnings[] = {"HYBRID_", "OMPI_",  "PMI",    "MPI_",  "SLURM_",
                                             "TORCH",   "MASTER", "LOCAL_", "RANK=", "WORLD_"};
    for (char **at = environ; *at;) {
        char name[256];
        bool is_one = false;
        for (size_t i = 0; i < sizeof beginnings / sizeof beginnings[0]; i++)
            is_one = is_one || strncmp(*at, beginnings[i], strlen(beginnings[i])) == 0;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*at, "="), *at);
        if (!is_one)
            at++;
        else
            unsetenv(name); /* the next one is in its place now */
    }
}

static void set_environment(const char *list) {
    char copy[1024];
    forget_launchers();
    snprintf(copy, sizeof copy, "%s", list);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        char *equals = strchr(word, '=');
        *equals = 0;
        setenv(word, equals + 1, 1);
    }
}

START_TEST(each_launcher_is_understood) {
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const environment *e = &good[i];
        hy_ranks found;
        set_environment(e->set);
        hy_status status = hy_ranks_find(&found);
        ck_assert_msg(status == HY_OK, "%s: %s", e->name, hy_error_message());
        ck_assert_msg(
            found.source == e->source && found.rank == e->rank && found.count == e->count &&
                found.local_rank == e->local_rank && found.local_count == e->local_count,
            "%s: %s, %d of %d, %d of %d here", e->name, hy_ranks_source_name(found.source),
            found.rank, found.count, found.local_rank, found.local_count);
        ck_assert_msg(strcmp(found.address, e->address) == 0, "%s: %s", e->name, found.address);
        ck_assert_msg(e->port == 0 || e->port == found.port, "%s: %d", e->name, found.port);
        ck_assert_msg(found.count == 1 || found.port > 0, "%s: no port", e->name);
    }
}
END_TEST

START_TEST(what_does_not_make_sense_is_named) {
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        hy_ranks found;
        set_environment(bad[i].set);
        hy_status status = hy_ranks_find(&found);
        const char *message = hy_error_message();
        ck_assert_msg(status == HY_ERR_INPUT, "%s was taken", bad[i].set);
        ck_assert_msg(strstr(message, bad[i].first) && strstr(message, bad[i].second),
                      "%s: lacks \"%s\" or \"%s\": %s", bad[i].set, bad[i].first, bad[i].second,
                      message);
    }
}
END_TEST

START_TEST(ranks_of_a_job_agree_on_port_and_job_and_jobs_differ) {
    hy_ranks a, b, other;
    const char *format = "OMPI_COMM_WORLD_RANK=%d OMPI_COMM_WORLD_SIZE=2 "
                         "OMPI_COMM_WORLD_LOCAL_RANK=%d OMPI_COMM_WORLD_LOCAL_SIZE=2 "
                         "OMPI_MCA_ess_base_jobid=%d";
    char text[512];
    snprintf(text, sizeof text, format, 0, 0, 77);
    set_environment(text);
    must(hy_ranks_find(&a));
    snprintf(text, sizeof text, format, 1, 1, 77);
    set_environment(text);
    must(hy_ranks_find(&b));
    snprintf(text, sizeof text, format, 1, 1, 78);
    set_environment(text);
    must(hy_ranks_find(&other));
    ck_assert_int_eq(a.port, b.port);
    ck_assert(a.job == b.job && a.job != other.job);
    ck_assert_int_ge(a.port, 15000);
    ck_assert_int_lt(a.port, 30000);
}
END_TEST

/* ---- Slurm's lists --------------------------------------------------------------------------- */

static const char *first_host(const char *list) {
    static char out[32];
    return hy_slurm_first_host(list, out, sizeof out) ? out : "(none)";
}

START_TEST(the_first_host_of_a_node_list_is_found) {
    ck_assert_str_eq(first_host("node1"), "node1");
    ck_assert_str_eq(first_host("node1,node2"), "node1");
    ck_assert_str_eq(first_host("node[01-04,07]"), "node01");
    ck_assert_str_eq(first_host("node[7,1-3],big"), "node7");
    ck_assert_str_eq(first_host("rack[1-2]n[003-4],x"), "rack1n003");
    ck_assert_str_eq(first_host("a[1]-b.c"), "a1-b.c");
    const char *wrong[] = {"",
                           ",",
                           "node[",
                           "node[]",
                           "node[a]",
                           "node[1-",
                           "a]b",
                           "a b",
                           "n[-1]",
                           "n[1-2",
                           "n[[1]]",
                           "n[1]x/",
                           "abcdefghijklmnopqrstuvwxyz0123456789"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ck_assert_msg(strcmp(first_host(wrong[i]), "(none)") == 0, "%s: %s", wrong[i],
                      first_host(wrong[i]));
}
END_TEST

static int64_t tasks(const char *list, int node) {
    int64_t out = -1;
    return hy_slurm_tasks_of_node(list, node, &out) ? out : -1;
}

START_TEST(tasks_of_a_node_are_counted) {
    ck_assert_int_eq(tasks("4", 0), 4);
    ck_assert_int_eq(tasks("4(x2),3", 1), 4);
    ck_assert_int_eq(tasks("4(x2),3", 2), 3);
    ck_assert_int_eq(tasks("4(x2),3", 3), -1);
    ck_assert_int_eq(tasks("", 0), -1);
    ck_assert_int_eq(tasks("4(x2", 0), -1);
    ck_assert_int_eq(tasks("4x", 0), -1);
    ck_assert_int_eq(tasks("0", 0), -1);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("dist_ranks");
    TCase *c = tcase_create("ranks");
    tcase_add_test(c, each_launcher_is_understood);
    tcase_add_test(c, what_does_not_make_sense_is_named);
    tcase_add_test(c, ranks_of_a_job_agree_on_port_and_job_and_jobs_differ);
    tcase_add_test(c, the_first_host_of_a_node_list_is_found);
    tcase_add_test(c, tasks_of_a_node_are_counted);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
