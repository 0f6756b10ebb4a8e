/* tokenize.c: how fast a tokenizer is opened, and how fast one core encodes.
 *   build/bench/tokenize [TOKENIZER [TEXT [MB]]]
 *
 * TOKENIZER is a tokenizer.json or a folder, TEXT a file with <|endoftext|> between documents; MB
 * of it (default 100) are encoded, document by document. Without arguments it uses the GPT-2
 * tokenizer and books.txt in $HYBRID_DATA; if they are missing, it says so and ends.
 * bench/peers/hf_tokenize.py takes the same arguments and prints the same figures for Hugging Face
 * tokenizers; equal sums mean equal ids. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "tokenizer/tokenizer.h"

#define OPENINGS 5

static const char separator[] = "<|endoftext|>";

static int stop(void) {
    fprintf(stderr, "tokenize: %s\n", hy_error_message());
    return EXIT_FAILURE;
}

/* Milliseconds of the fastest opening. */
static hy_status time_opening(const char *path, double *best, hy_tokenizer **out) {
    *best = 1e30;
    for (int i = 0; i < OPENINGS; i++) {
        double began = hy_clock();
        HY_TRY(hy_tokenizer_open(path, out));
        double took = (hy_clock() - began) * 1e3;
        if (took < *best) *best = took;
        if (i + 1 < OPENINGS) hy_tokenizer_close(*out);
    }
    return HY_OK;
}

static hy_status encode_all(const hy_tokenizer *t, const char *text, size_t size, hy_ids *ids) {
    for (size_t at = 0; at < size;) {
        const char *hit = memmem(text + at, size - at, separator, strlen(separator));
        size_t end = hit ? (size_t)(hit - text) : size;
        HY_TRY(hy_tokenizer_encode(t, text + at, end - at, 0, ids));
        at = hit ? end + strlen(separator) : size;
    }
    return HY_OK;
}

static hy_status measure(const char *tokenizer, const char *path, double megabytes) {
    hy_tokenizer *t;
    hy_file_map map;
    hy_ids ids = {0};
    double opened;
    HY_TRY(time_opening(tokenizer, &opened, &t));
    HY_TRY(hy_file_map_open(path, &map));
    size_t size = map.size < megabytes * 1e6 ? map.size : (size_t)(megabytes * 1e6);
    while (size > 0 && size < map.size && (map.data[size] & 0xC0) == 0x80) size--;
    double began = hy_clock();
    hy_status status = encode_all(t, (const char *)map.data, size, &ids);
    double seconds = hy_clock() - began;
    uint64_t sum = 0;
    for (size_t i = 0; i < ids.count; i++) sum = sum * 31 + (uint64_t)ids.data[i];
    if (status == HY_OK) {
        printf("opened in %.1f ms (best of %d)\n", opened, OPENINGS);
        printf("%.1f MB in %.2f s: %.1f MB/s on one core, %zu tokens, sum %016llx\n", size / 1e6,
               seconds, size / 1e6 / seconds, ids.count, (unsigned long long)sum);
    }
    hy_ids_free(&ids);
    hy_file_map_close(&map);
    hy_tokenizer_close(t);
    return status;
}

int main(int argc, char **argv) {
    char tokenizer[4096], text[4096];
    const char *data = getenv("HYBRID_DATA");
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizers/gpt2", data ? data : "");
    snprintf(text, sizeof text, "%s/books.txt", data ? data : "");
    if (argc > 1) snprintf(tokenizer, sizeof tokenizer, "%s", argv[1]);
    if (argc > 2) snprintf(text, sizeof text, "%s", argv[2]);
    if (argc == 1 && !(hy_path_exists(tokenizer) && hy_path_exists(text))) {
        printf("tokenize: skipped, because HYBRID_DATA has no tokenizers/gpt2 and books.txt\n");
        return EXIT_SUCCESS;
    }
    double megabytes = argc > 3 ? strtod(argv[3], NULL) : 100;
    return measure(tokenizer, text, megabytes) == HY_OK ? EXIT_SUCCESS : stop();
}
