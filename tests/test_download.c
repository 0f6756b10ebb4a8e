/* test_download.c: fetching a model's folder from a hub that this program keeps itself
 * (hub_server.h). */
#include "hub_server.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "hub/hf_folder.h"
#include "hub/hub_listing.h"
#include "hybrid.h"

#define NAME "some/model-1"
#define WEIGHTS 300000

static hub_server hub;
static char folder[256], weights[WEIGHTS];
static hy_downloaded got;

static void begin(void) {
    temp_folder(folder);
    for (size_t i = 0; i < sizeof weights; i++) weights[i] = (char)(i * i >> 7);
    hub_start(&hub);
    hub_add(&hub, "config.json", "{\"a\": 1}", 8);
    hub_add(&hub, "tokenizer.json", "{}", 2);
    hub_add(&hub, "model.safetensors", weights, sizeof weights)->is_large = true;
    hub_add(&hub, "pytorch_model.bin", "old", 3);
    static const char *const variables[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH",
                                            "HF_HOME",  "HF_HUB_CACHE",           "http_proxy",
                                            "all_proxy"};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) unsetenv(variables[i]);
    setenv("HF_ENDPOINT", hub.url, 1);
    setenv("HOME", folder, 1);
}

static void end(void) {
    hy_fault_disarm();
    hy_fault_limit_disk(0);
    hub_stop(&hub);
    remove_folder(folder);
}

/* A path inside the test's folder; good until eight more were asked for. */
static const char *in_folder(const char *name) {
    static char paths[8][1024];
    static int next;
    char *path = paths[next++ % 8];
    must(hy_path_join(path, sizeof paths[0], folder, name));
    return path;
}

static void check_file(const char *path, const void *data, size_t size) {
    char *found;
    size_t found_size;
    must(hy_file_read(path, &found, &found_size));
    ck_assert_uint_eq(found_size, size);
    ck_assert_mem_eq(found, data, size);
    free(found);
}

/* The cache has the model under its name, whole. */
static void check_cached(void) {
    hy_model_files kind;
    char path[HY_HF_PATH_MAX], file[HY_HF_PATH_MAX];
    must(hy_hf_find(NAME, &kind, path));
    ck_assert_int_eq(kind, HY_FILES_HF);
    must(hy_path_join(file, sizeof file, path, "model.safetensors"));
    check_file(file, weights, sizeof weights);
    ck_assert(hy_hf_holds_file(path, file));
}

static void check_not_cached(void) {
    hy_model_files kind = HY_FILES_NONE;
    char path[HY_HF_PATH_MAX];
    ck_assert(hy_hf_find(NAME, &kind, path) != HY_OK || kind == HY_FILES_NONE);
}

static size_t count_in(const char *path) {
    char **names;
    size_t count;
    must(hy_dir_list(path, &names, &count));
    hy_dir_list_free(names, count);
    return count;
}

/* ---- what comes ------------------------------------------------------------------------------ */

START_TEST(a_model_is_fetched_into_the_cache_and_found_by_its_name) {
    must(hy_download(NAME, NULL, NULL, &got));
    check_cached();
    ck_assert_str_eq(got.commit, HUB_COMMIT);
    ck_assert_int_eq(got.files, 3);
    ck_assert_uint_eq(got.bytes, WEIGHTS + 10);
    ck_assert_uint_eq(got.fetched, got.bytes);
    ck_assert_uint_eq(count_in(got.folder), 3); /* what the loader does not read stays there */
    check_file(in_folder(".cache/huggingface/hub/models--some--model-1/refs/main"), HUB_COMMIT, 40);
    hub.bytes_sent = 0;
    must(hy_download(NAME, NULL, NULL, &got));
    ck_assert_uint_eq(got.fetched, 0);
    ck_assert_uint_eq(hub.bytes_sent, 0);
}
END_TEST

START_TEST(a_folder_of_the_callers_gets_plain_files) {
    const char *out = in_folder("model");
    must(hy_download(NAME, out, NULL, &got));
    ck_assert_str_eq(got.folder, out);
    ck_assert_uint_eq(count_in(out), 3);
    check_file(in_folder("model/model.safetensors"), weights, sizeof weights);
    check_file(in_folder("model/config.json"), "{\"a\": 1}", 8);
    must(hy_download(NAME, out, NULL, &got));
    ck_assert_uint_eq(got.fetched, 0);
    must(hy_file_write_atomic(in_folder("model/config.json"), "{\"a\": 2}", 8));
    must_fail(hy_download(NAME, out, NULL, &got), HY_ERR_INPUT,
              "differs from the hub's config.json");
    check_file(in_folder("model/config.json"), "{\"a\": 2}", 8);
}
END_TEST

START_TEST(of_several_sets_of_weights_those_that_the_index_names_are_fetched) {
    static const char index[] = "{\"weight_map\": {\"a\": \"model-1.safetensors\"}}";
    hub.files[2].name = "model-1.safetensors";
    hub_add(&hub, "consolidated.safetensors", weights, 1000)->is_large = true;
    hub_add(&hub, "model.safetensors.index.json", index, sizeof index - 1);
    must(hy_download(NAME, NULL, NULL, &got));
    ck_assert_int_eq(got.files, 4);
    ck_assert_uint_eq(got.bytes, WEIGHTS + 10 + sizeof index - 1);
    hub.files[2].name = "model-2.safetensors";
    must_fail(hy_download(NAME, in_folder("b"), NULL, &got), HY_ERR_INPUT,
              "names model-1.safetensors");
}
END_TEST

START_TEST(another_revision_is_asked_for_and_remembered) {
    must(hy_download(NAME "@refs/pr/1", NULL, NULL, &got));
    check_file(in_folder(".cache/huggingface/hub/models--some--model-1/refs/refs/pr/1"), HUB_COMMIT,
               40);
    hub.list_status = 404;
    hub.error_code = "RevisionNotFound";
    must_fail(hy_download(NAME "@v9/x", NULL, NULL, &got), HY_ERR_INPUT, "has no revision v9/x");
    ck_assert_str_eq(hub.target, "/api/models/some/model-1/revision/v9%2Fx?blobs=true");
    must_fail(hy_download(NAME "@../x", NULL, NULL, &got), HY_ERR_INPUT,
              "is not a model name on the hub");
    must_fail(hy_download("../x", NULL, NULL, &got), HY_ERR_INPUT,
              "is not a model name on the hub");
    must_fail(hy_download("a/b/c", NULL, NULL, &got), HY_ERR_INPUT,
              "is not a model name on the hub");
}
END_TEST

/* ---- what is cut off continues --------------------------------------------------------------- */

START_TEST(a_connection_that_breaks_is_continued_where_it_broke) {
    hub.cut_at = 100000;
    hub.cuts = 2;
    must(hy_download(NAME, NULL, NULL, &got));
    check_cached();
    ck_assert_uint_eq(hub.bytes_sent, WEIGHTS + 10); /* no byte twice */
}
END_TEST

START_TEST(the_next_call_continues_what_the_last_one_left) {
    hub.cut_at = 100000;
    hub.cuts = 1;
    hub.status_after_cuts = 403;
    ck_assert(hy_download(NAME, NULL, NULL, &got) != HY_OK);
    check_not_cached();
    hub.file_status = 0;
    hub.bytes_sent = 0;
    must(hy_download(NAME, NULL, NULL, &got));
    check_cached();
    ck_assert_uint_eq(got.fetched, WEIGHTS - 100000 + 8); /* config.json is the last */
    ck_assert_uint_eq(hub.bytes_sent, got.fetched);
}
END_TEST

START_TEST(a_server_without_ranges_sends_all_of_it_again) {
    hub.cut_at = 100000;
    hub.cuts = 1;
    hub.has_no_ranges = true;
    must(hy_download(NAME, NULL, NULL, &got));
    check_cached();
    ck_assert_uint_eq(hub.bytes_sent, 100000 + WEIGHTS + 10);
}
END_TEST

/* Now more and now less comes of it, and each time all over again: that is no progress. */
START_TEST(a_server_that_never_sends_the_whole_is_given_up) {
    hub.cut_at = 100000;
    hub.other_cut_at = 50000;
    hub.cuts = 40;
    hub.has_no_ranges = true;
    must_fail(hy_download(NAME, NULL, NULL, &got), HY_ERR_IO, "model.safetensors");
    ck_assert_int_gt(hub.cuts, 30);
    check_not_cached();
}
END_TEST

START_TEST(what_was_left_of_something_else_is_fetched_anew) {
    must(hy_dir_make(in_folder("model")));
    must(hy_file_write_atomic(in_folder("model/model.safetensors.partial"), "something else", 14));
    must(hy_download(NAME, in_folder("model"), NULL, &got));
    check_file(in_folder("model/model.safetensors"), weights, sizeof weights);
}
END_TEST

START_TEST(a_link_that_was_planted_is_not_written_through) {
    must(hy_dir_make(in_folder("model")));
    must(hy_file_write_atomic(in_folder("precious"), "mine", 4));
    ck_assert_int_eq(symlink(in_folder("precious"), in_folder("model/model.safetensors.partial")),
                     0);
    must(hy_download(NAME, in_folder("model"), NULL, &got));
    check_file(in_folder("precious"), "mine", 4);
    check_file(in_folder("model/model.safetensors"), weights, sizeof weights);
}
END_TEST

/* A disk that fails at any call: an error that names it, no half model, and the next call makes it
 * whole. */
START_TEST(a_disk_that_fails_at_any_call_leaves_something_to_continue) {
    hub.files[2].size = 40000;
    hy_fault_arm(1000000, EIO, false);
    must(hy_download(NAME, in_folder("first"), NULL, &got));
    must(hy_download("some/other", NULL, NULL, &got));
    long calls = hy_fault_disarm();
    ck_assert_int_gt(calls, 20);
    for (long i = 0; i < calls; i++) {
        char out[32];
        snprintf(out, sizeof out, "out-%ld", i);
        bool is_cache = i % 2;
        hy_fault_arm(i, EIO, false);
        hy_status status = hy_download(NAME, is_cache ? NULL : in_folder(out), NULL, &got);
        hy_fault_disarm();
        if (status != HY_OK) ck_assert_str_ne(hy_error_message(), "");
        must(hy_download(NAME, is_cache ? NULL : in_folder(out), NULL, &got));
        char path[HY_HF_PATH_MAX];
        must(hy_path_join(path, sizeof path, got.folder, "model.safetensors"));
        check_file(path, weights, 40000);
        if (is_cache) remove_folder(in_folder(".cache"));
    }
}
END_TEST

/* ---- what is not believed -------------------------------------------------------------------- */

START_TEST(a_file_with_another_checksum_is_not_kept) {
    char *other = strdup("{\"a\": 3}");
    hub.files[0].instead = other;
    must_fail(hy_download(NAME, NULL, NULL, &got), HY_ERR_IO, "but the hub lists");
    check_not_cached();
    hub.files[0].instead = NULL;
    must(hy_download(NAME, NULL, NULL, &got));
    check_cached();
    free(other);
}
END_TEST

START_TEST(a_file_longer_than_listed_is_refused) {
    hub.files[1].instead = "{ }     ";
    must_fail(hy_download(NAME, NULL, NULL, &got), HY_ERR_IO, "tokenizer.json");
    check_not_cached();
}
END_TEST

START_TEST(names_that_lead_elsewhere_are_left_out) {
    hub_add(&hub, "../../../../evil.jinja", "x", 1);
    hub_add(&hub, "/evil.jinja", "x", 1);
    hub_add(&hub, ".evil.jinja", "x", 1);
    hub_add(&hub, "sub/evil.jinja", "x", 1);
    hub_add(&hub, "evil\\u0000.jinja", "x", 1);
    hub_add(&hub, "evil\\n.jinja", "x", 1);
    must(hy_download(NAME, in_folder("model"), NULL, &got));
    ck_assert_int_eq(got.files, 3);
    ck_assert_uint_eq(count_in(in_folder("model")), 3);
    ck_assert_uint_eq(count_in(folder), 1);
    hub.commit = "../../../../../tmp/0123456789abcdef012345";
    must_fail(hy_download(NAME, NULL, NULL, &got), HY_ERR_INPUT,
              "is not a list of a model's files");
}
END_TEST

START_TEST(models_that_cannot_be_used_are_refused_before_anything_is_fetched) {
    hub.files[2].name = "model.gguf";
    must_fail(hy_download(NAME, NULL, NULL, &got), HY_ERR_INPUT, "other weight formats");
    hub.files[0].name = "other.json";
    must_fail(hy_download(NAME, NULL, NULL, &got), HY_ERR_INPUT, "has no config.json");
    ck_assert_uint_eq(hub.bytes_sent, 0);
    ck_assert_uint_eq(count_in(folder), 0);
}
END_TEST

/* ---- the token ------------------------------------------------------------------------------- */

START_TEST(the_token_goes_to_the_hub_and_to_no_other_host) {
    hub_server other;
    hub_start(&other);
    other.files[other.file_count++] = hub.files[2];
    hub.sends_to = other.url;
    setenv("HF_TOKEN", "hf_secret", 1);
    must(hy_download(NAME, NULL, NULL, &got));
    check_cached();
    ck_assert_str_eq(hub.token, "hf_secret");
    ck_assert_int_eq(other.requests, 1);
    ck_assert_str_eq(other.token, "");
    hub_stop(&other);
}
END_TEST

START_TEST(a_redirect_on_the_hub_itself_keeps_the_token) {
    char place[128];
    hub_server cdn;
    hub_start(&cdn);
    cdn.files[cdn.file_count++] = hub.files[2];
    /* user@host looks like the hub and is another host */
    snprintf(place, sizeof place, "http://127.0.0.1@%s", cdn.url + 7);
    hub.sends_to = place;
    setenv("HF_TOKEN", "hf_secret", 1);
    must(hy_download(NAME, NULL, NULL, &got));
    ck_assert_str_eq(cdn.token, "");
    hub_stop(&cdn);
    hub.sends_to = "file:///etc";
    must_fail(hy_download("some/other", NULL, NULL, &got), HY_ERR_IO, "which is not followed");
    hub.sends_to = "/some/model-1/resolve";
    must_fail(hy_download("some/other", NULL, NULL, &got), HY_ERR_IO, "redirects too many times");
    ck_assert_str_eq(hub.token, "hf_secret");
}
END_TEST

START_TEST(the_token_is_found_in_variables_and_then_in_the_file) {
    must(hy_dir_make(in_folder(".cache/huggingface")));
    must(hy_file_write_atomic(in_folder(".cache/huggingface/token"), "hf_file\n", 8));
    must(hy_download(NAME, NULL, NULL, &got));
    ck_assert_str_eq(hub.token, "hf_file");
    setenv("HUGGING_FACE_HUB_TOKEN", "hf_old", 1);
    must(hy_download(NAME, NULL, NULL, &got));
    ck_assert_str_eq(hub.token, "hf_old");
    setenv("HF_TOKEN", "hf_new", 1);
    must(hy_download(NAME, NULL, NULL, &got));
    ck_assert_str_eq(hub.token, "hf_new");
    setenv("HF_TOKEN", "hf\r\nHost: evil", 1);
    must_fail(hy_download(NAME, NULL, NULL, &got), HY_ERR_INPUT,
              "HF_TOKEN does not contain a token");
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(refusals_say_what_to_do) {
    hub.list_status = 404;
    must_fail(hy_download(NAME, NULL, NULL, &got), HY_ERR_INPUT, "check the name");
    hub.list_status = 401;
    must_fail(hy_download(NAME, NULL, NULL, &got), HY_ERR_INPUT, "set HF_TOKEN");
    hub.list_status = 0;
    hub.file_status = 403;
    hub.error_code = "GatedRepo";
    must_fail(hy_download(NAME, NULL, NULL, &got), HY_ERR_INPUT, "is gated: accept its terms at");
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "HF_TOKEN"));
    hub.error_code = NULL;
    hub.list_status = 418;
    must_fail(hy_download(NAME, NULL, NULL, &got), HY_ERR_IO, "answered with HTTP status 418");
    setenv("HF_ENDPOINT", "ftp://nowhere", 1);
    must_fail(hy_download(NAME, NULL, NULL, &got), HY_ERR_INPUT, "is not an address");
}
END_TEST

START_TEST(a_disk_without_room_is_noticed_before_it_begins) {
    hy_fault_limit_disk((64 << 20) + WEIGHTS);
    must_fail(hy_download(NAME, NULL, NULL, &got), HY_ERR_IO, "but the disk of");
    ck_assert_uint_eq(hub.bytes_sent, 0);
    hy_fault_limit_disk((64 << 20) + WEIGHTS + 10);
    must(hy_download(NAME, NULL, NULL, &got));
}
END_TEST

START_TEST(a_name_that_is_not_in_the_cache_comes_with_how_to_fetch_it) {
    hy_config *config;
    must(hy_config_create(&config));
    must_fail(hy_config_set(config, "model", NAME, HY_FROM_FLAG), HY_ERR_INPUT,
              "hybrid-train --download " NAME);
    must(hy_download(NAME, NULL, NULL, &got));
    hy_config_destroy(config);
    ck_assert_str_eq(hy_hf_how_to_fetch("gpt3").text, "");
    ck_assert_str_eq(hy_hf_how_to_fetch("/some/folder").text, "");
}
END_TEST

/* ---- the program ----------------------------------------------------------------------------- */

/* What `hybrid-train ARGUMENTS` prints, both streams; *code is how it ended. */
static const char *printed(const char *arguments, int *code) {
    static char text[4096];
    char command[1024];
    const char *bin = getenv("HYBRID_BIN");
    snprintf(command, sizeof command, "%s/hybrid-train %s 2>&1",
             bin ? bin : HY_SOURCE_DIR "/build/bin", arguments);
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    text[fread(text, 1, sizeof text - 1, pipe)] = 0;
    *code = WEXITSTATUS(pclose(pipe));
    return text;
}

START_TEST(the_program_says_where_the_model_is_and_how_to_use_it) {
    int code;
    const char *text = printed("--download " NAME, &code);
    ck_assert_msg(code == 0 && strstr(text, "3 files, 293.0 KiB"), "%s", text);
    ck_assert_ptr_nonnull(strstr(text, "hybrid-train --model " NAME " --data"));
    check_cached();
    text = printed("--download " NAME " --json", &code);
    ck_assert_msg(code == 0 && strstr(text, "\"fetched\": 0"), "%s", text);
    text = printed("--download " NAME " --steps 5", &code);
    ck_assert_msg(code == 2 && strstr(text, "can only be combined with --out FOLDER"), "%s", text);
    hub.list_status = 404;
    text = printed("--download " NAME " --out /tmp/none", &code);
    ck_assert_msg(code == 2 && strstr(text, "check the name"), "%s", text);
}
END_TEST

/* ---- the list -------------------------------------------------------------------------------- */

static hy_status read_list(const char *text, hy_hub_listing *out) {
    return hy_hub_listing_read(text, strlen(text), "list", out);
}

#define SHA "\"sha\": \"" HUB_COMMIT "\""
#define FILE_OF(name) "{\"rfilename\": \"" name "\", \"size\": 5, \"blobId\": \"" HUB_COMMIT "\"}"

START_TEST(lists_are_read_strictly) {
    hy_hub_listing list;
    must(read_list(
        "{" SHA ", \"siblings\": [" FILE_OF("config.json") ", " FILE_OF("model.safetensors") "]}",
        &list));
    ck_assert_uint_eq(list.count, 2);
    ck_assert_str_eq(list.files[1].name, "config.json"); /* the last, whatever the order */
    ck_assert(list.files[1].is_wanted && !list.files[0].is_wanted);
    hy_hub_listing_free(&list);
    must_fail(read_list("[]", &list), HY_ERR_INPUT, "siblings");
    must_fail(read_list("{\"sha\": \"ABC\", \"siblings\": []}", &list), HY_ERR_INPUT, "\"sha\"");
    must_fail(read_list("{" SHA ", \"siblings\": [{\"rfilename\": \"config.json\", \"size\": 5}]}",
                        &list),
              HY_ERR_INPUT, "no checksum for config.json");
    must_fail(read_list("{" SHA ", \"siblings\": [{\"rfilename\": \"config.json\", \"size\": -1, "
                        "\"blobId\": \"" HUB_COMMIT "\"}]}",
                        &list),
              HY_ERR_INPUT, "no size");
    must_fail(read_list("{" SHA ", \"siblings\": [{\"rfilename\": \"config.json\", \"size\": 5, "
                        "\"blobId\": \"../x\"}]}",
                        &list),
              HY_ERR_INPUT, "no checksum");
    hy_text many = {0};
    hy_text_add(&many, "{" SHA ", \"siblings\": [" FILE_OF("config.json"));
    for (int i = 0; i < 1100; i++)
        hy_text_addf(&many,
                     ", {\"rfilename\": \"%d.safetensors\", \"size\": 5, \"blobId\": \"" HUB_COMMIT
                     "\"}",
                     i);
    hy_text_add(&many, "]}");
    must_fail(read_list(many.data, &list), HY_ERR_INPUT, "more than 1024 files");
    hy_text_free(&many);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("download");
    TCase *tests = tcase_create("download");
    tcase_add_checked_fixture(tests, begin, end);
    tcase_add_test(tests, a_model_is_fetched_into_the_cache_and_found_by_its_name);
    tcase_add_test(tests, a_folder_of_the_callers_gets_plain_files);
    tcase_add_test(tests, of_several_sets_of_weights_those_that_the_index_names_are_fetched);
    tcase_add_test(tests, another_revision_is_asked_for_and_remembered);
    tcase_add_test(tests, a_connection_that_breaks_is_continued_where_it_broke);
    tcase_add_test(tests, the_next_call_continues_what_the_last_one_left);
    tcase_add_test(tests, a_server_without_ranges_sends_all_of_it_again);
    tcase_add_test(tests, a_server_that_never_sends_the_whole_is_given_up);
    tcase_add_test(tests, what_was_left_of_something_else_is_fetched_anew);
    tcase_add_test(tests, a_link_that_was_planted_is_not_written_through);
    tcase_add_test(tests, a_disk_that_fails_at_any_call_leaves_something_to_continue);
    tcase_add_test(tests, a_file_with_another_checksum_is_not_kept);
    tcase_add_test(tests, a_file_longer_than_listed_is_refused);
    tcase_add_test(tests, names_that_lead_elsewhere_are_left_out);
    tcase_add_test(tests, models_that_cannot_be_used_are_refused_before_anything_is_fetched);
    tcase_add_test(tests, the_token_goes_to_the_hub_and_to_no_other_host);
    tcase_add_test(tests, a_redirect_on_the_hub_itself_keeps_the_token);
    tcase_add_test(tests, the_token_is_found_in_variables_and_then_in_the_file);
    tcase_add_test(tests, refusals_say_what_to_do);
    tcase_add_test(tests, a_disk_without_room_is_noticed_before_it_begins);
    tcase_add_test(tests, a_name_that_is_not_in_the_cache_comes_with_how_to_fetch_it);
    tcase_add_test(tests, the_program_says_where_the_model_is_and_how_to_use_it);
    tcase_add_test(tests, lists_are_read_strictly);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
