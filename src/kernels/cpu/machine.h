/* machine.h: facts about this computer: the CPU, threads and memory that this process may use. */
#pragma once

#include <stddef.h>

int hy_machine_threads(void);                     /* cores in this process's affinity mask */
void hy_machine_cpu_name(char *out, size_t size); /* "Neoverse-V1", "AMD Ryzen 9 7950X" */
/* in bytes, within the limit of the control group */
void hy_machine_memory(size_t *total, size_t *free);
