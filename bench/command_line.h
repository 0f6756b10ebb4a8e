/* command_line.h: the flags of a measurement as a table: name, value, help.
 *
 * Values stay text; most are passed to hy_config_set, which checks them. --set KEY=VALUE may be
 * repeated, and --help prints the table. A wrong flag is reported on standard error. */
#ifndef BENCH_COMMAND_LINE_H
#define BENCH_COMMAND_LINE_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define BENCH_SETS_MAX 32
#define BENCH_WORD_MAX 128

typedef struct bench_flag {
    const char *name;  /* "--steps" */
    const char *value; /* the default until one is given */
    const char *help;
} bench_flag;

typedef struct bench_command {
    const char *program, *about;
    bench_flag *flags;
    int flag_count;
    const char *sets[BENCH_SETS_MAX]; /* KEY=VALUE, in the order given */
    int set_count;
    bool wants_help;
} bench_command;

static inline void bench_help(const bench_command *c) {
    printf("%s: %s\n\n", c->program, c->about);
    for (int i = 0; i < c->flag_count; i++) {
        const bench_flag *f = &c->flags[i];
        printf("  %-18s %s%s%s\n", f->name, f->help, f->value[0] ? "; " : "", f->value);
    }
    printf("  %-18s %s\n", "--set KEY=VALUE", "any setting of hybrid-train; may be repeated");
}

static inline bool bench_usage(const bench_command *c, const char *what, const char *value,
                               const char *expected) {
    fprintf(stderr, "%s: %s \"%s\": expected %s\n", c->program, what, value, expected);
    return false;
}

static inline bool bench_take_flag(bench_command *c, const char *name, const char *value) {
    if (strcmp(name, "--set") == 0) {
        if (c->set_count == BENCH_SETS_MAX)
            return bench_usage(c, name, value, "at most 32 of them");
        if (!strchr(value, '=')) return bench_usage(c, name, value, "KEY=VALUE");
        c->sets[c->set_count++] = value;
        return true;
    }
    for (int i = 0; i < c->flag_count; i++) {
        if (strcmp(c->flags[i].name, name) != 0) continue;
        c->flags[i].value = value;
        return true;
    }
    return bench_usage(c, "option", name, "an option that --help lists");
}

static inline bool bench_command_parse(bench_command *c, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) c->wants_help = true;
    }
    for (int i = 1; i < argc && !c->wants_help; i += 2) {
        if (i + 1 == argc) return bench_usage(c, "option", argv[i], "a value after it");
        if (!bench_take_flag(c, argv[i], argv[i + 1])) return false;
    }
    return true;
}

/* Prints command line and date, so that figures can be repeated. */
static inline void bench_print_command(int argc, char **argv) {
    char date[32];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    printf("$");
    for (int i = 0; i < argc; i++) printf(strchr(argv[i], ' ') ? " \"%s\"" : " %s", argv[i]);
    printf("\n%s\n", date);
}

/* The value of a flag of the table; "" for an unknown name. */
static inline const char *bench_value(const bench_command *c, const char *name) {
    for (int i = 0; i < c->flag_count; i++) {
        if (strcmp(c->flags[i].name, name) == 0) return c->flags[i].value;
    }
    return "";
}

/* Takes the next word from a comma-separated list; false at its end. A word that is too long is
 * cut. */
static inline bool bench_next_word(const char **list, char word[BENCH_WORD_MAX]) {
    size_t size = strcspn(*list, ",");
    if (size == 0) return false;
    snprintf(word, BENCH_WORD_MAX, "%.*s", (int)size, *list);
    *list += size + ((*list)[size] == ',');
    return true;
}

#endif
