/* top_screen.h: a whole screen of a terminal, taken and given back.
 *
 * Between enter and leave the other screen is shown, the cursor is hidden and keys come one by one.
 * Whatever ends the program gives the terminal back as it was: a return from main, an exit, a signal
 * that asks to end, one that kills. The state is global because signal handlers can reach nothing
 * else; there is one terminal. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef enum hy_top_key {
    HY_TOP_NO_KEY = 0, /* time is up */
    HY_TOP_RESIZED,    /* the screen has another size or must be drawn anew */
    HY_TOP_END,        /* a signal asks to end, or nobody is there any more */
    HY_TOP_NEXT,       /* arrows right and down, Tab */
    HY_TOP_PREVIOUS,   /* arrows left and up */
    HY_TOP_ESCAPE,
    HY_TOP_OTHER /* a key that means nothing */
} hy_top_key;    /* from ' ' on: the character typed */

/* False, with errno: the terminal cannot be set. */
bool hy_top_screen_enter(void);
void hy_top_screen_leave(void);

/* Columns and rows of the screen now. */
void hy_top_screen_size(int *columns, int *rows);

/* Writes it all; false: nobody reads any more, or a signal came. */
bool hy_top_screen_write(const char *bytes, size_t size);

/* What comes first: a key, a signal, or the end of `seconds`. */
int hy_top_screen_wait(double seconds);
