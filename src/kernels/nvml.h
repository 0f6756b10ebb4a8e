/* nvml.h: power, temperature, clock, load and memory of a card, by the driver's library.
 *
 * The library is opened at run time; if it is missing or does not know the card, nothing is
 * reported. A watch polls once a second in its own thread, so reading it never waits for the
 * driver. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hy_nvml_sample {
    bool is_known;
    double power_watts, temperature_c, sm_clock_mhz; /* NaN: the card does not report it */
    double utilization; /* share of time with a running kernel, 0 to 1 */
    uint64_t memory_total, memory_free, memory_used; /* of the card; total 0: not reported */
    uint64_t process_memory; /* memory of this process; 0: not reported, as in most containers */
} hy_nvml_sample;

typedef struct hy_nvml_watch hy_nvml_watch;

/* Watches card number `device` with this name; NULL: not possible. */
hy_nvml_watch *hy_nvml_watch_create(const char *name, int device);
void hy_nvml_watch_destroy(hy_nvml_watch *watch); /* watch may be NULL */
/* Queries the driver now and waits for it. */
hy_nvml_sample hy_nvml_ask(hy_nvml_watch *watch);
/* The latest sample; is_known is false before the first and without a watch. */
hy_nvml_sample hy_nvml_latest(hy_nvml_watch *watch);

/* The version of the driver ("580.65.06"); false if it is unknown. */
bool hy_nvml_driver_version(char *out, size_t size);
