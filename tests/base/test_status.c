/* Status codes, messages per thread, and the version. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/version.h>

#include "base/message.h"
#include "harness/harness.h"

static void every_status_has_name_text_and_advice(void **state) {
    (void)state;
#define CHECK(name, number, text, advice)                                                          \
    assert_int_equal(LS_##name, number);                                                           \
    assert_string_equal(ls_status_name(LS_##name), "LS_" #name);                                   \
    assert_string_equal(ls_status_text(LS_##name), text);                                          \
    assert_string_equal(ls_status_advice(LS_##name), advice);
    LS_STATUS_TABLE(CHECK)
#undef CHECK
}

static void unknown_status_is_named_as_such(void **state) {
    (void)state;
    const int numbers[] = {-1, 17, 1000, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        assert_string_equal(ls_status_name((ls_status)numbers[i]), "LS_ERR_?");
        assert_true(ls_status_text((ls_status)numbers[i])[0] != '\0');
        assert_true(ls_status_advice((ls_status)numbers[i])[0] != '\0');
    }
}

static void failure_leaves_message(void **state) {
    (void)state;
    assert_int_equal(lsi_fail(LS_ERR_IO, "%s: %d bytes", "a.txt", 7), LS_ERR_IO);
    assert_string_equal(ls_last_message(), "a.txt: 7 bytes");
}

static void failure_with_errno_appends_systems_words(void **state) {
    (void)state;
    errno = ENOENT;
    assert_int_equal(lsi_fail_errno(LS_ERR_NOT_FOUND, "a.txt"), LS_ERR_NOT_FOUND);
    assert_string_equal(ls_last_message(), "a.txt: No such file or directory");
    assert_int_equal(errno, ENOENT);
}

static void context_goes_before_message(void **state) {
    (void)state;
    ls_status status = lsi_fail(LS_ERR_FORMAT, "bad header");
    status = lsi_context(status, "tensor %d", 3);
    status = lsi_context(status, "loading %s", "model");
    assert_int_equal(status, LS_ERR_FORMAT);
    assert_string_equal(ls_last_message(), "loading model: tensor 3: bad header");
}

static void context_of_success_changes_nothing(void **state) {
    (void)state;
    lsi_message_set("before");
    assert_int_equal(lsi_context(LS_OK, "loading"), LS_OK);
    assert_string_equal(ls_last_message(), "before");
}

static void context_without_message_gives_meaning_of_status(void **state) {
    (void)state;
    lsi_message_set("");
    (void)lsi_context(LS_ERR_MEMORY, "loading");
    assert_string_equal(ls_last_message(), "loading: memory ran out");
}

static void message_may_be_made_from_itself(void **state) {
    (void)state;
    lsi_message_set("inner");
    (void)lsi_fail(LS_ERR_PEER, "rank 2: %s", ls_last_message());
    assert_string_equal(ls_last_message(), "rank 2: inner");
    lsi_message_set(ls_last_message());
    assert_string_equal(ls_last_message(), "rank 2: inner");
    lsi_message_set(NULL);
    assert_string_equal(ls_last_message(), "");
}

static void long_message_is_cut_and_marked(void **state) {
    (void)state;
    static const int lengths[] = {1022, 1023, 1024, 5000};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        char text[5001];
        memset(text, 'x', sizeof text);
        text[lengths[i]] = '\0';
        (void)lsi_fail(LS_ERR_IO, "%s", text);
        size_t expected = lengths[i] < LSI_MESSAGE_BYTES ? (size_t)lengths[i] : 1023;
        assert_int_equal(strlen(ls_last_message()), expected);
        int is_cut = strcmp(ls_last_message() + expected - 3, "...") == 0;
        assert_int_equal(is_cut, lengths[i] >= LSI_MESSAGE_BYTES);
    }
    /* context on top of a full message: the beginning counts, no half character is left */
    char text[1100];
    for (size_t i = 0; i + 1 < sizeof text; i += 2) memcpy(text + i, "ä", 2);
    text[1022] = '\0';
    lsi_message_set(text);
    (void)lsi_context(LS_ERR_IO, "a");
    size_t length = strlen(ls_last_message());
    assert_memory_equal(ls_last_message(), "a: ä", 5);
    assert_string_equal(ls_last_message() + length - 5, "ä...");
}

static void *fail_elsewhere(void *context) {
    (void)context;
    (void)lsi_fail(LS_ERR_IO, "other thread");
    return (void *)(intptr_t)(strcmp(ls_last_message(), "other thread") == 0);
}

static void message_belongs_to_its_thread(void **state) {
    (void)state;
    pthread_t thread;
    void *was_right;
    lsi_message_set("this thread");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    assert_int_equal(pthread_join(thread, &was_right), 0);
    assert_non_null(was_right);
    assert_string_equal(ls_last_message(), "this thread");
}

static void version_is_that_of_header(void **state) {
    (void)state;
    char expected[32];
    snprintf(expected, sizeof expected, "%d.%d.%d", LS_VERSION_MAJOR, LS_VERSION_MINOR,
             LS_VERSION_PATCH);
    assert_string_equal(ls_version(), expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_name_text_and_advice),
        cmocka_unit_test(unknown_status_is_named_as_such),
        cmocka_unit_test(failure_leaves_message),
        cmocka_unit_test(failure_with_errno_appends_systems_words),
        cmocka_unit_test(context_goes_before_message),
        cmocka_unit_test(context_of_success_changes_nothing),
        cmocka_unit_test(context_without_message_gives_meaning_of_status),
        cmocka_unit_test(message_may_be_made_from_itself),
        cmocka_unit_test(long_message_is_cut_and_marked),
        cmocka_unit_test(message_belongs_to_its_thread),
        cmocka_unit_test(version_is_that_of_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
