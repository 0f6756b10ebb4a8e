/* mutate.c: damages a file in place, by a number alone.
 *
 *   mutate FILE NUMBER */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/file.h"
#include "mutate.h"

int main(int argc, char **argv) {
    char *data;
    size_t size;
    if (argc != 3) return EXIT_FAILURE;
    if (hy_file_read(argv[1], &data, &size) != HY_OK) {
        fprintf(stderr, "mutate: %s\n", hy_error_message());
        return EXIT_FAILURE;
    }
    uint8_t *out = malloc(size + MUTATION_GROWTH);
    if (!out) return EXIT_FAILURE;
    size = mutate(data, size, out, strtoull(argv[2], NULL, 10));
    FILE *file = fopen(argv[1], "wb");
    bool is_written = file && fwrite(out, 1, size, file) == size;
    if (file && fclose(file) != 0) is_written = false;
    free(out);
    free(data);
    return is_written ? EXIT_SUCCESS : EXIT_FAILURE;
}
