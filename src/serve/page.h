/* page.h: the page at /, in which a person talks to the model.
 *
 * It is one document without outside resources; page/ has its parts, which are compiled in. */
#pragma once

#include "base/text.h"

/* The hashes are base64 of SHA-256. */
extern const char hy_serve_style[], hy_serve_body[], hy_serve_script[];
extern const char hy_serve_style_hash[], hy_serve_body_hash[], hy_serve_script_hash[];

void hy_serve_page(hy_text *out);
void hy_serve_page_policy(hy_text *out); /* its Content-Security-Policy */
