/* figures.h: numbers as people read them.
 *
 * Each function returns a small struct by value, so a figure can be written straight into a
 * printf call: printf("%s", hy_cli_bytes(n).text). */
#ifndef HY_CLI_FIGURES_H
#define HY_CLI_FIGURES_H

#include <stdint.h>

typedef struct hy_cli_figure {
    char text[32];
} hy_cli_figure;

hy_cli_figure hy_cli_bytes(uint64_t bytes);     /* "812 B", "34.2 MiB", "1.46 TiB" */
hy_cli_figure hy_cli_count(int64_t count);      /* "1,234,567" */
hy_cli_figure hy_cli_short_count(double count); /* "812", "12.3k", "124.4M", "7.62B" */
hy_cli_figure hy_cli_duration(double seconds);  /* "0.8 s", "42 s", "3m 12s", "5h 07m", "2d 03h" */
hy_cli_figure hy_cli_loss(double nats);         /* "1.2345", "-" when it is not known */
hy_cli_figure hy_cli_learning_rate(double lr);  /* "3.00e-04" */

#endif
