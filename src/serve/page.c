/* page.c: puts the page together. See page.h. */
#include "serve/page.h"

void hy_serve_page(hy_text *out) {
    hy_text_add(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                     "<title>hybrid-serve</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>");
    hy_text_add(out, hy_serve_style);
    hy_text_add(out, "</style>\n</head>\n<body>\n");
    hy_text_add(out, hy_serve_body);
    hy_text_add(out, "<script>");
    hy_text_add(out, hy_serve_script);
    hy_text_add(out, "</script>\n</body>\n</html>\n");
}

void hy_serve_page_policy(hy_text *out) {
    hy_text_addf(
        out,
        "default-src 'none'; style-src 'sha256-%s'; script-src 'sha256-%s'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hy_serve_style_hash, hy_serve_script_hash);
}
