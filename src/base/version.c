/* version.c: the version of this library, for programs built against another header. See
 * hybrid.h. */
#include "hybrid.h"

const char *hy_version(void) { return HYBRID_VERSION; }

int hy_abi(void) { return HYBRID_ABI; }
