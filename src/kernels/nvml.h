/* nvml.h: a card's power, temperature, clock, load and memory, by the driver's own library.
 *
 * The library is opened at run time; where it is missing, or does not know the card, there is
 * simply nothing to report. A watch asks once a second in a thread of its own, so that whoever
 * reads it never waits for the driver. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hy_nvml_sample {
    bool is_known;
    double power_watts, temperature_c, sm_clock_mhz; /* NaN: the card does not report it */
    double utilization; /* share of time with a kernel running, 0 to 1 */
    uint64_t memory_total, memory_free, memory_used; /* of the card; total 0: not reported */
    uint64_t process_memory; /* of it, this process's; 0: not reported, as in most containers */
} hy_nvml_sample;

typedef struct hy_nvml_watch hy_nvml_watch;

/* Begins to watch card number `device` of that name; NULL when it cannot. */
hy_nvml_watch *hy_nvml_watch_create(const char *name, int device);
void hy_nvml_watch_destroy(hy_nvml_watch *watch); /* NULL is accepted */
/* Asks now, whatever the last sample said; takes as long as the driver does. */
hy_nvml_sample hy_nvml_ask(hy_nvml_watch *watch);
/* The newest sample; is_known is false before the first and without a watch. */
hy_nvml_sample hy_nvml_latest(hy_nvml_watch *watch);

/* Version of the driver ("580.65.06"); false when it is not known. */
bool hy_nvml_driver_version(char *out, size_t size);
