/* top_screen.h: takes over the whole screen of a terminal, and restores it.
 *
 * Between enter and leave the alternate screen is shown, the cursor is hidden and keys are read one
 * by one. The terminal is restored however the program ends: a return from main, an exit, or a
 * signal. The state is global, because signal handlers can use nothing else and there is one
 * terminal. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef enum hy_top_key {
    HY_TOP_NO_KEY = 0, /* no key within the time */
    HY_TOP_RESIZED,    /* the screen has a new size or must be redrawn */
    HY_TOP_END,        /* a signal requests the end, or the terminal is gone */
    HY_TOP_NEXT,       /* arrows right and down, Tab */
    HY_TOP_PREVIOUS,   /* arrows left and up */
    HY_TOP_ESCAPE,
    HY_TOP_OTHER /* a key without a function */
} hy_top_key;    /* from ' ' upwards: the typed character */

/* False, with errno: the terminal mode cannot be changed. */
bool hy_top_screen_enter(void);
void hy_top_screen_leave(void);

/* The current columns and rows of the screen. */
void hy_top_screen_size(int *columns, int *rows);

/* Writes everything; false: nobody reads the output any more, or a signal arrived. */
bool hy_top_screen_write(const char *bytes, size_t size);

/* Waits for a key, a signal, or the end of `seconds`, whichever is first. */
int hy_top_screen_wait(double seconds);
