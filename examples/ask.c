/* ask.c: asks a model questions through the library and prints the answers word by word.
 *   ask FOLDER "question" ["next question" ...]
 *
 * FOLDER is a run, one of its checkpoints or a model folder. The questions form one
 * conversation. */
#include <stdio.h>

#include "hybrid.h"

static void print_text(void *user, const char *text, size_t size) {
    (void)user;
    fwrite(text, 1, size, stdout);
    fflush(stdout);
}

static hy_status ask(hy_inference *model, const char *question) {
    hy_generate_options options = {.max_tokens = 200, .temperature = 0.7, .top_p = 0.95, .seed = 1};
    hy_generated info;
    hy_status status = hy_inference_say(model, question, &options, print_text, NULL, &info);
    if (status == HY_OK) printf("\n(%d tokens)\n", info.tokens);
    return status;
}

int main(int argc, char **argv) {
    hy_config *config = NULL;
    hy_inference *model = NULL;
    if (argc < 3) {
        fprintf(stderr, "usage: ask FOLDER \"question\" [\"next question\" ...]\n");
        return 2;
    }
    hy_status status = hy_config_create(&config);
    if (status == HY_OK) status = hy_config_use_model(config, argv[1]);
    if (status == HY_OK) status = hy_inference_open(config, NULL, NULL, &model);
    for (int i = 2; i < argc && status == HY_OK; i++) status = ask(model, argv[i]);
    if (status != HY_OK) fprintf(stderr, "%s\n", hy_error_message());
    hy_inference_close(model);
    hy_config_destroy(config);
    return status == HY_OK ? 0 : 1;
}
