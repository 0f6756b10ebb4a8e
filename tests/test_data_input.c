/* test_data_input.c: the kinds of input: compressed files, CSV, standard input; and files that are
 * refused because they are not text. */
#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/text.h"
#include "data/csv_rows.h"
#include "data/fingerprint.h"
#include "data_rig.h"

static char folder[256];
static char last_warning[1024], first_warning[1024];

static void make_folder(void) {
    temp_folder(folder);
    last_warning[0] = first_warning[0] = '\0';
}
static void drop_folder(void) { remove_folder(folder); }

static const char *write_bytes(const char *name, const void *bytes, size_t size) {
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

static const char *write_text(const char *name, const char *text) {
    return write_bytes(name, text, strlen(text));
}

static void keep_warning(void *user, const char *text) {
    (void)user;
    if (!first_warning[0]) snprintf(first_warning, sizeof first_warning, "%s", text);
    snprintf(last_warning, sizeof last_warning, "%s", text);
}

static hy_dataset_options options_of(const char *path) {
    return (hy_dataset_options){.path = path,
                                .val_fraction = 0.1,
                                .seq = 16,
                                .vocab = 256,
                                .seed = 3,
                                .packs = true,
                                .workers = 2,
                                .on_warning = keep_warning};
}

/* Of all that is trained on and held out, in order. */
static uint64_t digest(hy_dataset_options options) {
    hy_dataset *data = open_data(options);
    const hy_dataset_facts *facts = hy_dataset_describe(data);
    hy_hash hash;
    hy_hash_init(&hash, 0);
    for (int split = 0; split < 2; split++) {
        for (uint64_t i = 0; i < facts->sequences[split]; i++) {
            int32_t tokens[512] = {0}, targets[512] = {0};
            ck_assert_int_ge(hy_dataset_fill(data, (hy_split)split, i, tokens, targets, NULL), 0);
            hy_hash_add(&hash, tokens, sizeof tokens);
            hy_hash_add(&hash, targets, sizeof targets);
        }
    }
    hy_dataset_close(data);
    return hy_hash_value(&hash);
}

/* ---- packed files ---------------------------------------------------------------------------- */

/* "the quick brown fox\n" twenty times, by gzip and by zstd (with its checksum). */
static const uint8_t gzip[] = {
    0x1F, 0x8B, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0x2B, 0xC9, 0x48, 0x55, 0x28,
    0x2C, 0xCD, 0x4C, 0xCE, 0x56, 0x48, 0x2A, 0xCA, 0x2F, 0xCF, 0x53, 0x48, 0xCB, 0xAF, 0xE0,
    0x2A, 0x19, 0x15, 0x1B, 0x30, 0x31, 0x00, 0x3C, 0x67, 0x72, 0xEA, 0x90, 0x01, 0x00, 0x00};
static const uint8_t zstd[] = {0x28, 0xB5, 0x2F, 0xFD, 0x04, 0x68, 0xDD, 0x00, 0x00, 0xA0,
                               0x74, 0x68, 0x65, 0x20, 0x71, 0x75, 0x69, 0x63, 0x6B, 0x20,
                               0x62, 0x72, 0x6F, 0x77, 0x6E, 0x20, 0x66, 0x6F, 0x78, 0x0A,
                               0x01, 0x00, 0xF2, 0x4E, 0x9D, 0x4C, 0xBF, 0x3D, 0xF5, 0x59};
static const struct {
    const char *name;
    const uint8_t *bytes;
    size_t size;
} packed[] = {{"text.gz", gzip, sizeof gzip}, {"text.zst", zstd, sizeof zstd}};

static char *fox(int lines, hy_text *text) {
    for (int i = 0; i < lines; i++) hy_text_add(text, "the quick brown fox\n");
    return text->data;
}

START_TEST(a_packed_file_is_what_it_holds) {
    hy_text once = {0}, twice = {0};
    uint64_t plain = digest(options_of(write_text("plain.txt", fox(20, &once))));
    uint64_t both = digest(options_of(write_text("two.txt", fox(40, &twice))));
    for (size_t i = 0; i < 2; i++) {
        uint8_t bytes[256] = {0};
        size_t size = packed[i].size;
        memcpy(bytes, packed[i].bytes, size);
        memcpy(bytes + size, packed[i].bytes, size);
        ck_assert_uint_eq(digest(options_of(write_bytes(packed[i].name, bytes, size))), plain);
        /* By its bytes, not by its name; several members are one text. */
        ck_assert_uint_eq(digest(options_of(write_bytes("a.txt", bytes, size))), plain);
        ck_assert_uint_eq(digest(options_of(write_bytes("a.txt", bytes, 2 * size))), both);
    }
    uint8_t padded[sizeof gzip + 9] = {0};
    memcpy(padded, gzip, sizeof gzip);
    ck_assert_uint_eq(digest(options_of(write_bytes("a.gz", padded, sizeof padded))), plain);
    uint8_t noted[9 + sizeof zstd] = {0x5A, 0x2A, 0x4D, 0x18, 1, 0, 0, 0, 'n'};
    memcpy(noted + 9, zstd, sizeof zstd);
    ck_assert_uint_eq(digest(options_of(write_bytes("a.zst", noted, sizeof noted))), plain);
    hy_text_free(&once);
    hy_text_free(&twice);
}
END_TEST

START_TEST(a_packed_file_that_is_cut_is_named_with_the_place) {
    for (size_t i = 0; i < 2; i++) {
        for (size_t size = 8; size < packed[i].size; size++) {
            char place[128];
            snprintf(place, sizeof place, "%s: at byte %zu of %zu: the file ends too early",
                     packed[i].name, size, size);
            must_refuse(options_of(write_bytes(packed[i].name, packed[i].bytes, size)), place);
        }
    }
    uint8_t more[sizeof gzip + 4];
    memcpy(more, gzip, sizeof gzip);
    memcpy(more + sizeof gzip, "more", 4);
    must_refuse(options_of(write_bytes("m.gz", more, sizeof more)), "at byte 4");
}
END_TEST

/* Checksums find what is damaged: it is refused, or the same text where the byte means nothing. */
START_TEST(a_damaged_packed_file_never_gives_another_text) {
    hy_text text = {0};
    uint64_t plain = digest(options_of(write_text("plain.txt", fox(20, &text))));
    int refused = 0;
    for (size_t i = 0; i < 2; i++) {
        for (size_t at = 4; at < packed[i].size; at++) {
            uint8_t bytes[64];
            hy_dataset *data;
            memcpy(bytes, packed[i].bytes, packed[i].size);
            bytes[at] ^= 0x24;
            hy_dataset_options options = options_of(write_bytes("d", bytes, packed[i].size));
            if (hy_dataset_open(&options, &data) == HY_OK) {
                hy_dataset_close(data);
                ck_assert_uint_eq(digest(options), plain);
            } else {
                refused++;
                ck_assert_ptr_nonnull(strstr(hy_error_message(), "/d"));
            }
        }
    }
    ck_assert_int_gt(refused, 60);
    hy_text_free(&text);
}
END_TEST

/* Blocks of zstd that stand for 128 KiB with 4 bytes: 130 MB in 4 KB. */
START_TEST(a_file_that_unpacks_beyond_measure_is_refused) {
    hy_text bomb = {0};
    hy_text_add_bytes(&bomb, "\x28\xB5\x2F\xFD\x00\x38", 6);
    for (int i = 0; i < 1000; i++)
        hy_text_add_bytes(&bomb, i < 999 ? "\2\0\x10" : "\3\0\x10", 3), hy_text_add(&bomb, "a");
    must_refuse(options_of(write_bytes("bomb.zst", bomb.data, bomb.size)), "so this is not text");
    hy_text_free(&bomb);
}
END_TEST

/* A frame whose window is 2 GiB, as zstd --long=31 makes them. */
START_TEST(a_long_window_of_zstd_is_read) {
    hy_text text = {0}, frame = {0};
    uint64_t plain = digest(options_of(write_text("plain.txt", fox(20, &text))));
    size_t header = text.size << 3 | 1; /* the last block, as it is */
    const char block[] = {(char)header, (char)(header >> 8), (char)(header >> 16)};
    hy_text_add_bytes(&frame, "\x28\xB5\x2F\xFD\x00\xA8", 6);
    hy_text_add_bytes(&frame, block, sizeof block);
    hy_text_add_bytes(&frame, text.data, text.size);
    ck_assert_uint_eq(digest(options_of(write_bytes("a.zst", frame.data, frame.size))), plain);
    hy_text_free(&text);
    hy_text_free(&frame);
}
END_TEST

/* Each is too large to be gathered with others, and stays unpacked while the data is open. */
START_TEST(packed_files_may_be_more_than_a_process_may_open) {
    hy_text frame = {0};
    hy_text_add_bytes(&frame, "\x28\xB5\x2F\xFD\x00\x38", 6);
    for (int i = 0; i < 3; i++)
        hy_text_add_bytes(&frame, i < 2 ? "\2\0\x10" : "\3\0\x10", 3), hy_text_add(&frame, "a");
    for (int i = 0; i < 80; i++) {
        char name[32];
        snprintf(name, sizeof name, "%02d.zst", i);
        write_bytes(name, frame.data, frame.size);
    }
    struct rlimit few, old;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = (struct rlimit){.rlim_cur = 48, .rlim_max = old.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    hy_dataset *data = open_data(options_of(folder));
    ck_assert_uint_gt(hy_dataset_describe(data)->sequences[HY_TRAIN], 0);
    hy_dataset_close(data);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    hy_text_free(&frame);
}
END_TEST

/* Plays a machine on which neither library is installed. */
static bool has_no_libraries;

void *dlopen(const char *file, int flags) {
    void *(*real)(const char *, int);
    void *found = dlsym(RTLD_NEXT, "dlopen");
    memcpy(&real, &found, sizeof found);
    bool is_missing = has_no_libraries && file && strncmp(file, "libz", 4) == 0;
    return is_missing ? NULL : real(file, flags);
}

START_TEST(a_library_that_is_missing_is_named_with_its_package) {
    has_no_libraries = true;
    must_refuse(options_of(write_bytes("a.gz", gzip, sizeof gzip)), "libz.so.1 is missing");
    must_refuse(options_of(write_bytes("a.gz", gzip, sizeof gzip)), "package zlib1g");
    must_refuse(options_of(write_bytes("a.zst", zstd, sizeof zstd)), "package libzstd1");
    hy_text text = {0};
    hy_dataset_close(open_data(options_of(write_text("a.txt", fox(20, &text)))));
    hy_text_free(&text);
}
END_TEST

/* ---- CSV ------------------------------------------------------------------------------------- */

static const char json_rows[] =
    "{\"instruction\": \"add, please\", \"input\": \"\", \"output\": \"say \\\"two\\\"\"}\n"
    "{\"instruction\": \"lines\", \"input\": \"one\\ntwo\\n\", \"output\": \"5\\\" pipe; "
    "\\u00e9\"}\n"
    "{\"instruction\": \"third\", \"input\": \"x\", \"output\": \" blanks stay \"}\n";

START_TEST(csv_gives_the_rows_that_json_gives) {
    static const char *const files[] = {
        "instruction,input,output\n\"add, please\",,\"say \"\"two\"\"\"\n"
        "lines,\"one\ntwo\n\",\"5\"\" pipe; \u00e9\"\nthird,x, blanks stay \n",
        /* A mark, returns, no last line end, other columns, names in capitals, a blank line. */
        "\xEF\xBB\xBF"
        "id, Instruction ,INPUT,output,\r\n1,\"add, please\",\"\",\"say \"\"two\"\"\",\r\n\r\n"
        "2,lines,\"one\ntwo\n\",5\" pipe; \u00e9,\r\n3,third,x, blanks stay ,note",
        "output;input;instruction\n\"say \"\"two\"\"\";;add, please\n"
        "\"5\"\" pipe; \u00e9\";\"one\ntwo\n\";lines\n blanks stay ;x;third\n",
        /* The column of numbers that some programs put first has no name. */
        "\tinstruction\tinput\toutput\n0\tadd, please\t\t\"say \"\"two\"\"\"\n"
        "1\tlines\t\"one\ntwo\n\"\t5\" pipe; \u00e9\n\tthird\tx\t blanks stay \n"};
    hy_dataset_options options = options_of(write_text("rows.jsonl", json_rows));
    options.chat_template = HY_CHAT_ALPACA;
    options.seq = 512;
    options.packs = false;
    uint64_t expected = digest(options);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        options.path = write_text(i == 3 ? "rows.TSV" : "rows.csv", files[i]);
        ck_assert_msg(digest(options) == expected, "file %zu is another: %s", i, last_warning);
    }
}
END_TEST

START_TEST(malformed_records_are_reported_with_line_and_reason) {
    static const struct {
        const char *record, *reason;
    } cases[] = {
        {"a\n", "rows.csv:4: the row has 1 columns, but the first line names 2"},
        {"a,b,c\n", "rows.csv:4: the row has 3 columns, but the first line names 2"},
        {"\"a\"b,c\n", "rows.csv:4: there is text after a closing quote"},
        {"a\xFF,b\n", "rows.csv:4: the column \"prompt\" is not valid UTF-8"},
        {"a,\"b\n\n",
         "rows.csv:4: a quoted field has no closing quote; the rest of the file is ignored"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hy_text text = {0};
        hy_text_addf(&text, "prompt,completion\n\"two\nlines\",b\n%sc,d\ne,f\n", cases[i].record);
        hy_dataset_options options = options_of(write_text("rows.csv", text.data));
        options.val_path = write_text("val.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
        first_warning[0] = '\0';
        hy_dataset *data = open_data(options);
        ck_assert_ptr_nonnull(strstr(first_warning, cases[i].reason));
        ck_assert_uint_eq(hy_dataset_describe(data)->bad_rows, 1);
        ck_assert_uint_eq(hy_dataset_describe(data)->rows,
                          i == 4 ? 3 : 5); /* and the held-out one */
        hy_dataset_close(data);
        options.stops_at_bad_row = true;
        must_refuse(options, cases[i].reason);
        hy_text_free(&text);
    }
}
END_TEST

START_TEST(csv_without_known_columns_is_refused_by_their_names) {
    must_refuse(options_of(write_text("a.csv", "left,right\n1,2\n")), "(left, right)");
    must_refuse(options_of(write_text("a.csv", "left;right\n1,2\n")), "(left, right)");
    must_refuse(options_of(write_text("a.csv", "text,Text\n1,2\n")), "two columns have the name");
    must_refuse(options_of(write_text("a.csv", "text\n")), "contains no rows");
    must_refuse(options_of(write_text("a.csv", "")), "no line with column names");
    must_refuse(options_of(write_text("a.csv", "text,id\rone,1\r\"two\nlines\",2\rthree,3\r")),
                "the lines end with carriage returns");
    hy_dataset_options doubled =
        options_of(write_text("a.csv", "text\r\r\nsome text that is long enough\r\r\nb c\r\r\n"));
    hy_dataset_close(open_data(doubled));
    hy_dataset_options options = options_of(
        write_text("a.csv", "left,right\n1,2\n3,4 and some more text so that it is enough\n"));
    options.format = HY_FORMAT_TEXT;
    hy_dataset_close(open_data(options));
}
END_TEST

/* ---- what is not text ------------------------------------------------------------------------ */

START_TEST(what_is_not_text_is_refused_by_its_name) {
    static const struct {
        const char *bytes;
        size_t size;
        const char *name;
    } cases[] = {
#define KNOWN(bytes, name) {bytes, sizeof bytes - 1, name}
        KNOWN("PAR1\x15\x04",
              "is a Parquet file, not plain text; convert it with Python (pip install "
              "pyarrow): python3 -c"),
        KNOWN("ARROW1\0\0", "an Arrow file"),
        KNOWN("\xFF\xFF\xFF\xFF\x10", "an Arrow stream"),
        KNOWN("PK\x03\x04", "a zip archive"),
        KNOWN("%PDF-1.7", "a PDF"),
        KNOWN("\x89PNG\r\n", "a PNG picture"),
        KNOWN("SQLite format 3\0", "an SQLite database"),
        KNOWN("\x93NUMPY\x01", "a NumPy array"),
        KNOWN("\x40\0\0\0\0\0\0\0{\"a\"", "a safetensors file"),
        KNOWN("\177ELF\2", "a program (ELF)"),
        KNOWN("\3757zXZ\0", "compressed with xz, not plain text; convert it: xz -dc"),
        KNOWN("BZh91AY&SY", "compressed with bzip2"),
        KNOWN("7z\xBC\xAF\x27\x1C", "a 7z archive"),
        KNOWN("\xFF\xFEt\0e\0", "text in UTF-16"),
        KNOWN("\xFF\xFE\0\0t\0\0\0", "text in UTF-32"),
        KNOWN("some\0thing", "zero bytes"),
        KNOWN("\xF0\xD2\xC9\xD7\xC5\xD4 \xCD\xC9\xD2", "is not UTF-8 text: 90 %"),
#undef KNOWN
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char bytes[400];
        memset(bytes, 'x', sizeof bytes);
        for (size_t k = 0; k < sizeof bytes; k++) {
            bool is_repeated = i + 1 == sizeof cases / sizeof cases[0]; /* no first bytes tell it */
            if (k < cases[i].size || is_repeated) bytes[k] = cases[i].bytes[k % cases[i].size];
        }
        hy_dataset_options options = options_of(write_bytes("data.txt", bytes, sizeof bytes));
        must_refuse(options, cases[i].name);
        must_refuse(options, "data.txt");
        options.format = HY_FORMAT_TEXT;
        must_refuse(options, cases[i].name);
        /* On purpose it can be trained on. */
        options.format = HY_FORMAT_BYTES;
        options.seq = 200 - 1;
        hy_dataset *data = open_data(options);
        int32_t tokens[200], targets[200];
        ck_assert_int_eq(hy_dataset_fill(data, HY_TRAIN, 0, tokens, targets, NULL), 199);
        for (int k = 0; k < 199; k++) ck_assert_int_eq(tokens[k], (uint8_t)bytes[k]);
        hy_dataset_close(data);
    }
}
END_TEST

START_TEST(a_command_that_is_offered_can_be_pasted) {
    must_refuse(options_of(write_text("it's $(x).xz", "\3757zXZ and more")),
                "it'\\''s $(x).xz' | ");
    must_refuse(options_of(write_text("a b.parquet", "PAR1 and more")),
                "a b.parquet' > rows.jsonl");
    must_refuse(options_of(write_text("plain.xz", "\3757zXZ and more")), "/plain.xz | ");
}
END_TEST

START_TEST(text_with_a_few_odd_bytes_is_text) {
    hy_text text = {0};
    for (int i = 0; i < 100; i++) hy_text_add(&text, "ein Text in Latin-1 f\xFCr alte Rechner\n");
    hy_dataset_close(open_data(options_of(write_text("latin1.txt", text.data))));
    hy_text_clear(&text);
    /* A character on the border of what is looked at. */
    for (int i = 0; i < 4095; i++) hy_text_add(&text, "a");
    hy_text_add(&text, "\u20ac and more");
    hy_dataset_close(open_data(options_of(write_text("border.txt", text.data))));
    hy_text_free(&text);
}
END_TEST

/* Pictures beside text are skipped; tables that someone wanted to train on are not. */
START_TEST(a_folder_with_tables_is_refused) {
    hy_text text = {0};
    write_text("README.md", fox(20, &text));
    write_bytes("picture.png", "\x89PNG\0\0", 6);
    hy_dataset *data = open_data(options_of(folder));
    ck_assert_ptr_nonnull(
        strstr(hy_dataset_describe(data)->description, "(1 other files skipped)"));
    hy_dataset_close(data);
    write_text("train.parquet", "PAR1\x15");
    must_refuse(options_of(folder), "train.parquet is a Parquet file");
    hy_text_free(&text);
}
END_TEST

START_TEST(a_folder_of_pictures_says_what_they_are) {
    write_bytes("picture.png", "\x89PNG\0\0", 6);
    must_refuse(options_of(folder), "picture.png is a PNG picture");
}
END_TEST

/* ---- standard input -------------------------------------------------------------------------- */

/* Each test is a separate process, so standard input is its own too. */
static void pipe_in(const char *text) {
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], text, strlen(text)), (ssize_t)strlen(text));
    ck_assert_int_eq(close(ends[1]), 0);
    ck_assert_int_ge(dup2(ends[0], STDIN_FILENO), 0);
    ck_assert_int_eq(close(ends[0]), 0);
}

START_TEST(a_pipe_is_read_once_and_can_be_opened_again) {
    hy_text text = {0};
    const char *path = write_text("plain.txt", fox(50, &text));
    uint64_t expected = digest(options_of(path)), hash, hash_of_file;
    must(hy_fingerprint_data(path, HY_FORMAT_AUTO, &hash_of_file));
    pipe_in(text.data);
    ck_assert_uint_eq(digest(options_of("-")), expected);
    ck_assert_uint_eq(digest(options_of("-")), expected);
    must(hy_fingerprint_data("-", HY_FORMAT_AUTO, &hash));
    ck_assert_uint_eq(hash, hash_of_file);
    hy_text_free(&text);
}
END_TEST

START_TEST(rows_on_standard_input_are_recognised_by_their_beginning) {
    static const char csv[] = "prompt,completion\nhow are you today,thanks\nwell,it rains\na,b\n";
    static const char json[] = "\n{\"prompt\": \"how are you today\", \"completion\": \"thanks\"}\n"
                               "{\"prompt\": \"well\", \"completion\": \"it rains\"}\n"
                               "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
    uint64_t expected = digest(options_of(write_text("rows.jsonl", json)));
    pipe_in(json);
    ck_assert_uint_eq(digest(options_of("-")), expected);
    pipe_in(csv);
    ck_assert_uint_eq(digest(options_of("-")), expected);
    /* Braces alone make no rows. */
    pipe_in("{this is\ntext, not rows of JSON, and long enough for two sequences of it}\n");
    hy_dataset *data = open_data(options_of("-"));
    ck_assert_uint_eq(hy_dataset_describe(data)->rows, 0);
    hy_dataset_close(data);
}
END_TEST

START_TEST(standard_input_without_data_is_an_error) {
    pipe_in("");
    must_refuse(options_of("-"), "is empty");
    ck_assert_int_eq(close(STDIN_FILENO), 0);
    must_refuse(options_of("-"), "closed");
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("data: input");
    TCase *cases = tcase_create("input");
    tcase_add_checked_fixture(cases, make_folder, drop_folder);
    tcase_add_test(cases, a_packed_file_is_what_it_holds);
    tcase_add_test(cases, a_packed_file_that_is_cut_is_named_with_the_place);
    tcase_add_test(cases, a_damaged_packed_file_never_gives_another_text);
    tcase_add_test(cases, a_file_that_unpacks_beyond_measure_is_refused);
    tcase_add_test(cases, a_long_window_of_zstd_is_read);
    tcase_add_test(cases, packed_files_may_be_more_than_a_process_may_open);
    tcase_add_test(cases, a_library_that_is_missing_is_named_with_its_package);
    tcase_add_test(cases, csv_gives_the_rows_that_json_gives);
    tcase_add_test(cases, malformed_records_are_reported_with_line_and_reason);
    tcase_add_test(cases, csv_without_known_columns_is_refused_by_their_names);
    tcase_add_test(cases, what_is_not_text_is_refused_by_its_name);
    tcase_add_test(cases, a_command_that_is_offered_can_be_pasted);
    tcase_add_test(cases, text_with_a_few_odd_bytes_is_text);
    tcase_add_test(cases, a_folder_with_tables_is_refused);
    tcase_add_test(cases, a_folder_of_pictures_says_what_they_are);
    tcase_add_test(cases, a_pipe_is_read_once_and_can_be_opened_again);
    tcase_add_test(cases, rows_on_standard_input_are_recognised_by_their_beginning);
    tcase_add_test(cases, standard_input_without_data_is_an_error);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
