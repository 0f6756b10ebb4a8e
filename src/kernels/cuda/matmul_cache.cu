/* matmul_cache.cu: algorithms as text: the cache file and the table in checkpoints.
 *
 * There is a header line, then one algorithm per line:
 *     <card and library> <key of the matmul> <level> <microseconds> <the algorithm, 128 hex digits>
 * and after them the choices of attention (kernels/attention_choice.h). An algorithm is valid only
 * for the card and the library version before it; lines of others are kept but not used. A damaged
 * line is ignored. The file is replaced as a whole, after reading it again to keep the additions of
 * other runs; a file that is not ours is never changed. Nothing here fails a run: without a cache,
 * matmuls are timed again. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/attention_choice.cuh"
#include "kernels/cuda/matmul.cuh"

#define HEADER "hybrid-train matmul algorithms"
#define HEADER_LINE HEADER " 2\n"
enum { HEX = 2 * sizeof(cublasLtMatmulAlgo_t), LINE = 512 };

static const char *const level_names[] = {"guess", "fast", "max", "table"};
enum { LEVELS = sizeof level_names / sizeof level_names[0] };

/* ---- one line -------------------------------------------------------------------------------- */

void hy_matmul_key_text(const hy_matmul_key *key, char *out, size_t size) {
    static const char *const gelu[] = {"", "/gelu", "/gelu-keep", "/gelu-back"};
    bool is_mixed = key->in_b != key->in;
    char batch[24] = "";
    if (key->batch > 0) snprintf(batch, sizeof batch, "/batch-%d", key->batch);
    snprintf(out, size, "%lldx%lldx%lld/%c%c/%s%s%s-%s%s%s%s%s/%d%s%s%s%s", (long long)key->M,
             (long long)key->N, (long long)key->K, key->trans_a ? 't' : 'n',
             key->trans_b ? 't' : 'n', hy_dtype_name(key->in), is_mixed ? "*" : "",
             is_mixed ? hy_dtype_name(key->in_b) : "", hy_dtype_name(key->out),
             key->has_bias ? "/bias-" : "", key->has_bias ? hy_dtype_name(key->bias) : "",
             key->has_c ? "/c" : "", gelu[key->gelu], key->alignment, key->is_tf32 ? "/tf32" : "",
             key->is_fast ? "/fast" : "", key->is_lean ? "/lean" : "", batch);
}

static int print_entry(const hy_matmul_entry *entry, char *out, size_t size) {
    char hex[HEX + 1];
    const unsigned char *bytes = (const unsigned char *)&entry->algorithm;
    for (int i = 0; i < HEX / 2; i++) snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    return snprintf(out, size, "%s %s %s %.1f %s%s\n", entry->scope, entry->key,
                    level_names[entry->level], entry->microseconds, hex,
                    entry->is_apart ? " apart" : "");
}

static bool read_entry(const char *line, hy_matmul_entry *out) {
    char level[8], hex[HEX + 2], last[8] = "";
    *out = (hy_matmul_entry){};
    if (sscanf(line, "%95s %95s %7s %f %129s %7s", out->scope, out->key, level, &out->microseconds,
               hex, last) < 5) {
        return false;
    }
    out->is_apart = strcmp(last, "apart") == 0;
    int l = 0;
    while (l < LEVELS && strcmp(level, level_names[l]) != 0) l++;
    out->level = (hy_matmul_level)l;
    if (strlen(hex) != HEX || strspn(hex, "0123456789abcdef") != HEX) return false;
    unsigned char *bytes = (unsigned char *)&out->algorithm;
    for (int i = 0; i < HEX / 2; i++) {
        char digits[] = {hex[2 * i], hex[2 * i + 1], 0};
        bytes[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    return l < LEVELS && out->microseconds >= 0;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static hy_matmul_entry *look_up(const hy_matmul_entries *entries, const char *scope,
                                const char *key) {
    for (int i = 0; i < entries->count; i++) {
        hy_matmul_entry *entry = &entries->items[i];
        if (strcmp(entry->key, key) == 0 && strcmp(entry->scope, scope) == 0) return entry;
    }
    return NULL;
}

/* Adds an entry or replaces a less important one. False: not enough memory. */
static bool put(hy_matmul_entries *entries, const hy_matmul_entry *entry) {
    hy_matmul_entry *old = look_up(entries, entry->scope, entry->key);
    if (old) {
        if (entry->level >= old->level) *old = *entry;
        return true;
    }
    if (entries->count == entries->capacity) {
        int capacity = entries->capacity ? 2 * entries->capacity : 32;
        void *items = realloc(entries->items, (size_t)capacity * sizeof *entries->items);
        if (!items) return false;
        entries->items = (hy_matmul_entry *)items;
        entries->capacity = capacity;
    }
    entries->items[entries->count++] = *entry;
    return true;
}

static void clear(hy_matmul_entries *entries) {
    free(entries->items);
    *entries = (hy_matmul_entries){};
}

static hy_matmul_entry entry_of(const hy_cuda *cuda, const hy_matmul_plan *plan) {
    hy_matmul_entry entry = {};
    snprintf(entry.scope, sizeof entry.scope, "%s", cuda->plans->scope);
    hy_matmul_key_text(&plan->key, entry.key, sizeof entry.key);
    entry.level = plan->level;
    entry.microseconds = plan->microseconds;
    entry.is_apart = plan->is_apart;
    entry.algorithm = plan->algorithm;
    return entry;
}

const hy_matmul_entry *hy_matmul_recall(const hy_cuda *cuda, const hy_matmul_key *key) {
    const hy_matmul_plans *plans = cuda->plans;
    char text[96];
    hy_matmul_key_text(key, text, sizeof text);
    const hy_matmul_entry *entry = look_up(&plans->table, plans->scope, text);
    if (entry) return entry;
    entry = look_up(&plans->cache, plans->scope, text);
    return entry && entry->level >= (hy_matmul_level)cuda->options.tune ? entry : NULL;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* The content of the file. */
typedef struct contents {
    hy_matmul_entries matmuls;
    hy_attention_entries attention;
} contents;

/* Reads one line; a damaged one is ignored. False: not enough memory. */
static bool read_line(const char *line, contents *out) {
    hy_matmul_entry matmul;
    hy_attention_entry attention;
    if (read_entry(line, &matmul)) {
        bool is_timed = matmul.level == HY_LEVEL_FAST || matmul.level == HY_LEVEL_MAX;
        return !is_timed || put(&out->matmuls, &matmul);
    }
    return !hy_attention_read(line, &attention) || hy_attention_put(&out->attention, &attention);
}

/* Reads all entries. False: there is a file at this path that is not ours. */
static bool read_file(const char *path, contents *out) {
    char line[LINE];
    FILE *file = fopen(path, "r");
    if (!file) return true;
    bool is_ours = !fgets(line, sizeof line, file) || strncmp(line, HEADER, strlen(HEADER)) == 0;
    bool is_version = is_ours && strcmp(line, HEADER_LINE) == 0;
    while (is_version && fgets(line, sizeof line, file) && read_line(line, out)) continue;
    fclose(file);
    return is_ours;
}

static bool write_file(const char *path, const contents *all) {
    char line[LINE];
    unlink(path); /* left by another process with this id; links are not followed */
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file && fd >= 0) close(fd);
    if (!file) return false;
    bool is_good = fputs(HEADER_LINE, file) >= 0;
    for (int i = 0; i < all->matmuls.count && is_good; i++) {
        print_entry(&all->matmuls.items[i], line, sizeof line);
        is_good = fputs(line, file) >= 0;
    }
    for (int i = 0; i < all->attention.count && is_good; i++) {
        hy_attention_print(&all->attention.items[i], line, sizeof line);
        is_good = fputs(line, file) >= 0;
    }
    return fclose(file) == 0 && is_good;
}

static bool has_file(const hy_cuda *cuda) { return cuda->options.cache && cuda->options.cache[0]; }

void hy_matmul_cache_read(hy_cuda *cuda) {
    contents all = {};
    if (has_file(cuda)) read_file(cuda->options.cache, &all);
    cuda->plans->cache = all.matmuls;
    cuda->choices->cache = all.attention;
}

void hy_matmul_cache_write(hy_cuda *cuda) {
    hy_matmul_plans *plans = cuda->plans;
    const char *path = cuda->options.cache;
    contents merged = {};
    char temporary[4096];
    if (!plans || !has_file(cuda) || !plans->is_cache_old) return;
    plans->is_cache_old = false;
    int length = snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid());
    bool is_good = length < (int)sizeof temporary && read_file(path, &merged);
    for (int i = 0; i < plans->cache.count && is_good; i++) {
        is_good = put(&merged.matmuls, &plans->cache.items[i]);
    }
    for (int i = 0; i < cuda->choices->cache.count && is_good; i++) {
        is_good = hy_attention_put(&merged.attention, &cuda->choices->cache.items[i]);
    }
    if (is_good && (!write_file(temporary, &merged) || rename(temporary, path) != 0)) {
        remove(temporary);
    }
    clear(&merged.matmuls);
    hy_attention_clear(&merged.attention);
}

void hy_matmul_cache_add(hy_cuda *cuda, const hy_matmul_plan *plan) {
    bool is_timed = plan->level == HY_LEVEL_FAST || plan->level == HY_LEVEL_MAX;
    if (!has_file(cuda) || !is_timed) return;
    hy_matmul_entry entry = entry_of(cuda, plan);
    if (put(&cuda->plans->cache, &entry)) cuda->plans->is_cache_old = true;
}

void hy_matmul_cache_add_attention(hy_cuda *cuda, const hy_attention_entry *choice) {
    if (has_file(cuda) && hy_attention_put(&cuda->choices->cache, choice)) {
        cuda->plans->is_cache_old = true;
    }
}

void hy_matmul_cache_free(hy_cuda *cuda) {
    clear(&cuda->plans->cache);
    clear(&cuda->plans->table);
}

/* ---- the table of a checkpoint --------------------------------------------------------------- */

hy_status hy_cuda_matmul_table(hy_backend *b, char **text) {
    hy_cuda *cuda = (hy_cuda *)b->self;
    const hy_matmul_plans *plans = cuda->plans;
    const hy_attention_entries *attention = &cuda->choices->made;
    size_t size = 1 + (size_t)attention->count * LINE, used = 0;
    for (const hy_matmul_plan *plan = plans->first; plan; plan = plan->next) size += LINE;
    *text = (char *)malloc(size);
    if (!*text) return hy_cuda_fail(cuda, HY_ERR_MEMORY, "matmul: not enough memory for the table");
    (*text)[0] = 0;
    for (const hy_matmul_plan *plan = plans->first; plan; plan = plan->next) {
        if (plan->is_plain || !plan->is_prepared) continue;
        hy_matmul_entry entry = entry_of(cuda, plan);
        used += (size_t)print_entry(&entry, *text + used, size - used);
    }
    for (int i = 0; i < attention->count; i++) {
        used += (size_t)hy_attention_print(&attention->items[i], *text + used, size - used);
    }
    return HY_OK;
}

hy_status hy_cuda_load_matmul_table(hy_backend *b, const char *text) {
    hy_cuda *cuda = (hy_cuda *)b->self;
    hy_matmul_plans *plans = cuda->plans;
    for (const char *line = text; line && *line;) {
        hy_matmul_entry entry;
        const char *end = strchr(line, '\n');
        char buffer[LINE];
        size_t length = end ? (size_t)(end - line) : strlen(line);
        snprintf(buffer, sizeof buffer, "%.*s", (int)(length < LINE ? length : LINE - 1), line);
        line = end ? end + 1 : NULL;
        if (!read_entry(buffer, &entry) || strcmp(entry.scope, plans->scope) != 0) continue;
        entry.level = HY_LEVEL_TABLE;
        if (!put(&plans->table, &entry)) {
            return hy_cuda_fail(cuda, HY_ERR_MEMORY, "matmul: not enough memory for the table");
        }
    }
    int version = cuda->cudnn ? cuda->cudnn->version : 0;
    if (hy_attention_read_table(&cuda->choices->table, text, cuda->choices->card, version))
        return HY_OK;
    return hy_cuda_fail(cuda, HY_ERR_MEMORY, "attention: not enough memory for the table");
}
