/* machine_card.h: fills the GPU's part of hy_machine; what is missing stays zero, with the reason in
 * `cuda`. */
#ifndef HY_PLAN_MACHINE_CARD_H
#define HY_PLAN_MACHINE_CARD_H

#include "hybrid.h"

void hy_machine_probe_card(hy_machine *m);

#endif
