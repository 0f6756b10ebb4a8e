/* reward_provider.h: the model and data of the settings, learning from rewards (task grpo). */
#pragma once

#include "trainer/provider.h"

hy_status hy_reward_provider_create(hy_provider **out); /* released by its release op */
