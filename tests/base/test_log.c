/* Log lines: prefix, level, length, and that lines of several processes do not mix. */
#include <fcntl.h>
#include <string.h>

#include "base/log.h"
#include "harness/scratch.h"

/* What body logs, as text; the log's level and rank are set back. */
static const char *logged(void **state, void (*body)(void)) {
    const char *path = in_scratch(state, "log");
    int saved = dup(STDERR_FILENO);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(saved >= 0 && fd >= 0);
    dup2(fd, STDERR_FILENO);
    body();
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(fd);
    lsi_log_set_level(LSI_LOG_WARNING);
    lsi_log_set_rank(-1);
    return text_of(path);
}

static void log_at_every_level(void) {
    lsi_log(LSI_LOG_ERROR, "e %d", 1);
    lsi_log(LSI_LOG_WARNING, "w");
    lsi_log(LSI_LOG_INFO, "i");
    lsi_log(LSI_LOG_DEBUG, "d");
}

static void log_as_rank_2(void) {
    lsi_log_set_level(LSI_LOG_DEBUG);
    lsi_log_set_rank(2);
    log_at_every_level();
}

static void warnings_are_shown_by_default(void **state) {
    assert_string_equal(logged(state, log_at_every_level),
                        "lockstep error: e 1\nlockstep warning: w\n");
}

static void rank_and_all_levels_are_shown_on_request(void **state) {
    assert_string_equal(logged(state, log_as_rank_2),
                        "lockstep[rank 2] error: e 1\nlockstep[rank 2] warning: w\n"
                        "lockstep[rank 2] info: i\nlockstep[rank 2] debug: d\n");
}

static void log_long_line(void) {
    char text[8000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    lsi_log(LSI_LOG_ERROR, "%s", text);
    lsi_log(LSI_LOG_ERROR, "next");
}

static void long_line_is_cut_and_ended(void **state) {
    const char *text = logged(state, log_long_line);
    size_t length = strcspn(text, "\n");
    assert_in_range(length, LSI_MESSAGE_BYTES, LSI_MESSAGE_BYTES + 64);
    assert_string_equal(text + length, "\nlockstep error: next\n");
}

static int log_many(void *context) {
    char text[200];
    memset(text, *(const char *)context, sizeof text);
    text[sizeof text - 1] = '\0';
    for (int i = 0; i < 50; i++) lsi_log(LSI_LOG_ERROR, "%s", text);
    return 0;
}

static void log_from_two_processes(void) {
    pid_t child = fork();
    if (child == 0) _exit(log_many("a"));
    log_many("b");
    int status;
    waitpid(child, &status, 0);
}

static void lines_of_two_processes_stay_whole(void **state) {
    const char *text = logged(state, log_from_two_processes);
    int n_lines = 0;
    for (; *text; n_lines++) {
        static const char prefix[] = "lockstep error: ";
        assert_memory_equal(text, prefix, sizeof prefix - 1);
        text += sizeof prefix - 1;
        size_t length = strspn(text, *text == 'a' ? "a" : "b");
        assert_int_equal(length, 199);
        assert_int_equal(text[length], '\n');
        text += length + 1;
    }
    assert_int_equal(n_lines, 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warnings_are_shown_by_default),
        cmocka_unit_test(rank_and_all_levels_are_shown_on_request),
        cmocka_unit_test(long_line_is_cut_and_ended),
        cmocka_unit_test(lines_of_two_processes_stay_whole),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
