/* test_base_sha.c: SHA-256, SHA-1 and HMAC against the examples of FIPS 180, RFC 4231 and git. */
#include "harness.h"

#include "base/sha.h"

static void check_hash(hy_sha_kind kind, const char *data, size_t size, size_t piece,
                       const char *expected) {
    hy_sha sha;
    char found[HY_SHA_HEX];
    hy_sha_init(&sha, kind);
    for (size_t at = 0; at < size; at += piece)
        hy_sha_add(&sha, data + at, size - at < piece ? size - at : piece);
    hy_sha_text(&sha, found);
    ck_assert_str_eq(found, expected);
}

static const char two_blocks[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";

START_TEST(known_texts_have_their_known_hashes) {
    check_hash(HY_SHA256, "", 0, 1,
               "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_hash(HY_SHA256, "abc", 3, 3,
               "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_hash(HY_SHA256, two_blocks, 56, 56,
               "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check_hash(HY_SHA1, "", 0, 1, "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    check_hash(HY_SHA1, "abc", 3, 3, "a9993e364706816aba3e25717850c26c9cd0d89d");
    check_hash(HY_SHA1, two_blocks, 56, 56, "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    check_hash(HY_SHA1, "blob 6\0hello\n", 13, 13, "ce013625030ba8dba906f756967f9e9ca394464a");
}
END_TEST

START_TEST(how_bytes_are_cut_into_pieces_does_not_matter) {
    char *million = malloc(1000000);
    ck_assert_ptr_nonnull(million);
    memset(million, 'a', 1000000);
    static const size_t pieces[] = {1, 7, 63, 64, 65, 1000000};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        check_hash(HY_SHA256, million, 1000000, pieces[i],
                   "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
        check_hash(HY_SHA1, million, 1000000, pieces[i],
                   "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
    }
    free(million);
}
END_TEST

/* RFC 4231, cases 1 and 2. */
START_TEST(keyed_hashes_are_those_of_the_rfc) {
    static const struct {
        const char *key, *data, *expected;
    } cases[] = {
        {"\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b",
         "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {"Jefe", "what do ya want for nothing?",
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t found[HY_SHA256_BYTES], other[HY_SHA256_BYTES];
        char text[HY_SHA_HEX];
        hy_hmac(cases[i].key, strlen(cases[i].key), cases[i].data, strlen(cases[i].data), found);
        for (size_t k = 0; k < sizeof found; k++) snprintf(text + 2 * k, 3, "%02x", found[k]);
        ck_assert_str_eq(text, cases[i].expected);
        memcpy(other, found, sizeof other);
        ck_assert(hy_hmac_is_equal(found, other));
        other[31] ^= 1;
        ck_assert(!hy_hmac_is_equal(found, other));
    }
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("base_sha");
    TCase *tests = tcase_create("sha");
    tcase_add_test(tests, known_texts_have_their_known_hashes);
    tcase_add_test(tests, how_bytes_are_cut_into_pieces_does_not_matter);
    tcase_add_test(tests, keyed_hashes_are_those_of_the_rfc);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
