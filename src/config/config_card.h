/* config_card.h: the built-in settings for a card, for --config NAME. */
#pragma once

#include "base/text.h"

#define HY_CARD_FILE_NAME 96

/* Finds the settings of a card by any name that --card accepts, with "-safe" behind it for the
 * variant for low memory. `name` receives the file's name for messages, "gpu/rtx5080", and `out`
 * its text. False: no card has this name. */
bool hy_config_card(const char *asked, char name[HY_CARD_FILE_NAME], hy_text *out);
