/* listing.h: what listings in the pages take for granted, for compiling them (commands.sh). */
#include <hybrid.h>
#include <hybrid_report.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static hy_config *config;
static hy_trainer *trainer;
static hy_inference *model;
static hy_status status;
