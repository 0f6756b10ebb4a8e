/* ranks.c: reads the variables that launchers set. See ranks.h. */
#include "comm/ranks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "comm/slurm.h"

/* Slurm gives step ids from here on to the batch script or a shell of salloc, which have no
 * tasks. */
#define FIRST_SPECIAL_STEP 0xfffffff0LL

/* A launcher: its four variables (NULL: it does not set this one), and up to three variables that
 * are equal on all ranks of a job. */
typedef struct launcher {
    const char *name;
    const char *rank, *count, *local_rank, *local_count;
    const char *job1, *job2, *job3;
} launcher;

/* In the order in which they are looked for. */
static const launcher launchers[] = {
    [HY_RANKS_ALONE] = {.name = "", .count = ""},
    [HY_RANKS_LAUNCHER] = {"hybrid-train", "HYBRID_RANK", "HYBRID_RANKS", "HYBRID_LOCAL_RANK",
                           "HYBRID_LOCAL_RANKS", "HYBRID_JOB", "HYBRID_ADDRESS", NULL},
    [HY_RANKS_TORCHRUN] = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                           "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"},
    [HY_RANKS_OPENMPI] = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                          "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                          "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", NULL},
    [HY_RANKS_PMI] = {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
                      "PMI_JOBID", "PMI_PORT", NULL},
    [HY_RANKS_SLURM] = {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL,
                        "SLURM_JOB_ID", "SLURM_STEP_ID", NULL},
};
const char *hy_ranks_source_name(hy_ranks_source source) { return launchers[source].name; }
const char *hy_ranks_count_variable(hy_ranks_source source) { return launchers[source].count; }

/* ---- values ---------------------------------------------------------------------------------- */

/* NULL for a variable that is not set or empty. */
static const char *value_of(const char *name) {
    const char *value = name ? getenv(name) : NULL;
    return value && *value ? value : NULL;
}

static hy_status number_of(const char *name, int64_t least, int64_t most, int32_t *out) {
    const char *value = value_of(name);
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    bool is_number = *end == 0 && strspn(value, "0123456789") == strlen(value);
    HY_FAIL_IF(!is_number || errno != 0 || number < least || number > most, HY_ERR_INPUT,
               "%s is \"%s\": expected a number from %lld to %lld", name, value, (long long)least,
               (long long)most);
    *out = (int32_t)number;
    return HY_OK;
}

hy_status hy_address_parse(const char *name, const char *text, char host[HY_ADDRESS_MAX],
                           uint16_t *port) {
    const char *colon = strrchr(text, ':'), *from = text;
    char *end = NULL;
    long number = colon ? strtol(colon + 1, &end, 10) : 0;
    size_t length = colon ? (size_t)(colon - text) : 0;
    bool is_port = end && end > colon + 1 && *end == 0 && number >= 1 && number <= 65535;
    if (length > 2 && text[0] == '[' && text[length - 1] == ']') {
        from++;
        length -= 2;
    } else if (memchr(text, ':', length)) {
        is_port = false; /* an IPv6 address without brackets is ambiguous */
    }
    HY_FAIL_IF(!is_port || length == 0 || length >= HY_ADDRESS_MAX, HY_ERR_INPUT,
               "%s is \"%s\": expected host:port, as in 10.0.0.1:29500 or [fd00::1]:29500", name,
               text);
    memcpy(host, from, length);
    host[length] = 0;
    *port = (uint16_t)number;
    return HY_OK;
}

/* ---- one launcher ---------------------------------------------------------------------------- */

/* Is this a step that srun started? A job's script has the job's variables, but no step id. */
static bool is_in_slurm_step(void) {
    const char *step = value_of("SLURM_STEP_ID"), *id = step ? step : value_of("SLURM_STEPID");
    return id && value_of("SLURM_PROCID") && strtoll(id, NULL, 10) < FIRST_SPECIAL_STEP;
}

/* Has this launcher set any of its variables? */
static bool is_present(hy_ranks_source source) {
    const launcher *l = &launchers[source];
    if (source == HY_RANKS_SLURM) return is_in_slurm_step();
    /* srun may also set PMI's variables, with the same values as Slurm's own. */
    if (source == HY_RANKS_PMI && is_in_slurm_step()) return false;
    return value_of(l->rank) || value_of(l->count) || value_of(l->local_rank) ||
           value_of(l->local_count);
}

/* Names the first variable that is missing, and the first that is set. */
static hy_status check_complete(hy_ranks_source source) {
    const launcher *l = &launchers[source];
    /* Programs that set torchrun's variables themselves often omit LOCAL_WORLD_SIZE. */
    const char *names[] = {l->rank, l->count, l->local_rank,
                           source == HY_RANKS_TORCHRUN ? NULL : l->local_count};
    const char *set = l->local_count, *missing = NULL;
    for (int i = 3; i >= 0; i--) {
        if (value_of(names[i]))
            set = names[i];
        else if (names[i])
            missing = names[i];
    }
    HY_FAIL_IF(missing, HY_ERR_INPUT,
               "%s is set (%s), but %s is not: a launcher sets both; to train with one process, "
               "unset %s and the launcher's other variables",
               set, l->name, missing, set);
    return HY_OK;
}

/* srun puts the task counts of all nodes in one list. */
static void find_slurm_local_count(hy_ranks *out) {
    const char *list = value_of("SLURM_STEP_TASKS_PER_NODE"), *node = value_of("SLURM_NODEID");
    int64_t tasks = 0;
    if (!list) list = value_of("SLURM_TASKS_PER_NODE");
    bool is_known = list && node && hy_slurm_tasks_of_node(list, strtoll(node, NULL, 10), &tasks);
    bool is_count = is_known && tasks > out->local_rank && tasks <= out->count;
    out->local_count = is_count ? (int32_t)tasks : 0;
}

static hy_status check_below(const char *name, int32_t value, const char *limit_name,
                             int32_t limit) {
    HY_FAIL_IF(value >= limit, HY_ERR_INPUT, "%s is %d, but %s is %d: expected at most %d", name,
               value, limit_name, limit, limit - 1);
    return HY_OK;
}

static hy_status read_launcher(hy_ranks_source source, hy_ranks *out) {
    const launcher *l = &launchers[source];
    *out = (hy_ranks){.source = source};
    HY_TRY(check_complete(source));
    HY_TRY(number_of(l->count, 1, HY_RANKS_MOST, &out->count));
    HY_TRY(number_of(l->rank, 0, HY_RANKS_MOST - 1, &out->rank));
    HY_TRY(number_of(l->local_rank, 0, HY_RANKS_MOST - 1, &out->local_rank));
    HY_TRY(check_below(l->rank, out->rank, l->count, out->count));
    HY_TRY(check_below(l->local_rank, out->local_rank, l->count, out->count));
    if (value_of(l->local_count)) {
        HY_TRY(number_of(l->local_count, 1, out->count, &out->local_count));
        HY_TRY(check_below(l->local_rank, out->local_rank, l->local_count, out->local_count));
    }
    if (source == HY_RANKS_SLURM) find_slurm_local_count(out);
    return HY_OK;
}

/* ---- where rank 0 waits ---------------------------------------------------------------------- */

/* A number that is equal on all ranks of a job. Without a job name it is the parent's process
 * id, which ranks on one machine share. */
static uint64_t job_of(hy_ranks_source source) {
    const char *names[] = {launchers[source].job1, launchers[source].job2, launchers[source].job3};
    hy_hash hash;
    bool is_named = false;
    hy_hash_init(&hash, (uint64_t)source);
    for (size_t i = 0; i < 3; i++) {
        const char *value = value_of(names[i]);
        if (value) hy_hash_add(&hash, value, strlen(value) + 1);
        is_named = is_named || value;
    }
    long parent = is_named ? 0 : (long)getppid();
    hy_hash_add(&hash, &parent, sizeof parent);
    return hy_hash_value(&hash);
}

static hy_status address_from_slurm(hy_ranks *out) {
    const char *name =
        value_of("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    const char *list = value_of(name);
    HY_FAIL_IF(!list, HY_ERR_INPUT,
               "SLURM_PROCID is set, but neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST is: "
               "set HYBRID_ADDRESS=host:port to the address of rank 0");
    HY_FAIL_IF(!hy_slurm_first_host(list, out->address, sizeof out->address), HY_ERR_INPUT,
               "%s is \"%s\": expected a list of nodes, as in node[01-04]", name, list);
    return HY_OK;
}

static hy_status address_from_master(hy_ranks *out) {
    const launcher *l = &launchers[out->source];
    const char *host = value_of("MASTER_ADDR"), *port = value_of("MASTER_PORT");
    int32_t number = 0;
    HY_FAIL_IF(!host || !port, HY_ERR_INPUT,
               "%s is set (%s), but %s is not, so the address of rank 0 is not known",
               host ? "MASTER_ADDR" : l->rank, l->name, host ? "MASTER_PORT" : "MASTER_ADDR");
    HY_TRY(number_of("MASTER_PORT", 1, 65535, &number));
    HY_FAIL_IF(strlen(host) >= sizeof out->address, HY_ERR_INPUT,
               "MASTER_ADDR has %zu characters: expected a host name", strlen(host));
    snprintf(out->address, sizeof out->address, "%s", host);
    /* torchrun itself listens on MASTER_PORT if workers use its store. */
    const char *store = value_of("TORCHELASTIC_USE_AGENT_STORE");
    bool is_taken = store && strcmp(store, "True") == 0;
    out->port = (uint16_t)(number + (is_taken && number < 65535));
    return HY_OK;
}

static hy_status find_address(hy_ranks *out) {
    const char *own = value_of("HYBRID_ADDRESS");
    out->job = job_of(out->source);
    /* Systems assign ports from 32768 on; well-known ports are mostly below 10000. */
    out->port = (uint16_t)(15000 + hy_hash_bytes(&out->job, sizeof out->job, 0) % 15000);
    if (own) return hy_address_parse("HYBRID_ADDRESS", own, out->address, &out->port);
    HY_FAIL_IF(out->source == HY_RANKS_LAUNCHER, HY_ERR_INPUT,
               "HYBRID_RANK is set, but HYBRID_ADDRESS is not: set it to host:port of rank 0");
    if (out->source == HY_RANKS_TORCHRUN || value_of("MASTER_ADDR"))
        return address_from_master(out);
    if (out->local_count == out->count) snprintf(out->address, sizeof out->address, "127.0.0.1");
    bool is_known = out->address[0] || out->source != HY_RANKS_SLURM;
    return is_known ? HY_OK : address_from_slurm(out);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static hy_status check_agree(const hy_ranks *first, hy_ranks_source other) {
    const launcher *a = &launchers[first->source], *b = &launchers[other];
    hy_ranks second;
    HY_TRY(read_launcher(other, &second));
    HY_FAIL_IF(first->rank != second.rank || first->count != second.count, HY_ERR_INPUT,
               "%s and %s disagree: %s is %d and %s is %d, but %s is %d and %s is %d; unset the "
               "variables of the launcher that did not start this process",
               a->name, b->name, a->rank, first->rank, a->count, first->count, b->rank, second.rank,
               b->count, second.count);
    return HY_OK;
}

hy_status hy_ranks_find(hy_ranks *out) {
    *out = (hy_ranks){.count = 1, .local_count = 1};
    for (int i = HY_RANKS_LAUNCHER; i <= HY_RANKS_SLURM; i++) {
        hy_ranks_source source = (hy_ranks_source)i;
        bool is_found = out->source != HY_RANKS_ALONE;
        if (!is_present(source) || (is_found && source == HY_RANKS_SLURM)) continue;
        HY_TRY(is_found ? check_agree(out, source) : read_launcher(source, out));
    }
    return out->count > 1 ? find_address(out) : HY_OK;
}
