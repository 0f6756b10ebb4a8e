/* machine_card.h: fills the GPU's part of hy_machine; what is missing stays zero, with the reason in
 * `cuda`. */
#pragma once

#include "hybrid.h"

void hy_machine_probe_card(hy_machine *m);
