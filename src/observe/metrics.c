/* The metrics file: one JSON object a line (JSON Lines), a line per step and per evaluation.
 *
 * Whoever reads the file while the run goes on, or after it was killed, sees whole lines: a line
 * is one write(2). The file grows in place under its final name, unlike every other file we write,
 * because its readers follow it. The first failed write ends the writing (a later line must not
 * follow half of one) and is what close returns: a full disk costs the metrics, not the training.
 *
 * The fields of a step are rows of a table: name and place in lsi_step_record. */
#include "observe/observe.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

struct lsi_metrics {
    int fd;
    char *path;
    ls_status status; /* LS_OK, or the first failure; then nothing more is written */
    int error;        /* errno of LS_ERR_IO */
};

ls_status lsi_metrics_open(const char *path, lsi_metrics **metrics) {
    lsi_metrics *m = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *m);
    LSI_TRY(lsi_check_alloc(m));
    m->path = lsi_strdup(path);
    ls_status status = lsi_check_alloc(m->path);
    if (status == LS_OK) {
        m->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
        if (m->fd < 0) status = lsi_fail_errno(LS_ERR_IO, "%s: opening the metrics file", path);
    }
    if (status == LS_OK) {
        *metrics = m;
    } else {
        lsi_free(m->path);
        lsi_free(m);
    }
    return status;
}

static int write_all(int fd, const char *bytes, size_t n_bytes) {
    while (n_bytes > 0) {
        ssize_t written = write(fd, bytes, n_bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return written < 0 ? errno : EIO;
        bytes += written;
        n_bytes -= (size_t)written;
    }
    return 0;
}

/* Takes line over; NULL: memory ran out while it was made. */
static ls_status write_line(lsi_metrics *metrics, json_t *line) {
    size_t bytes = line ? json_dumpb(line, NULL, 0, JSON_COMPACT) : 0;
    char *text = bytes > 0 ? lsi_alloc(LSI_MEM_OTHER, bytes + 1) : NULL;
    ls_status status = LS_ERR_MEMORY;
    if (text && json_dumpb(line, text, bytes, JSON_COMPACT) == bytes) {
        text[bytes] = '\n';
        metrics->error = write_all(metrics->fd, text, bytes + 1);
        status = metrics->error ? LS_ERR_IO : LS_OK;
    }
    lsi_free(text);
    json_decref(line);
    return status;
}

/* JSON has no NaN and no infinity. */
static json_t *real_or_null(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static const struct {
    const char *name;
    size_t offset;
    bool is_integer; /* int64_t, else double */
} STEP_FIELDS[] = {
    {"step", offsetof(lsi_step_record, step), true},
    {"loss", offsetof(lsi_step_record, loss), false},
    {"lr", offsetof(lsi_step_record, lr), false},
    {"grad_norm", offsetof(lsi_step_record, grad_norm), false},
    {"n_tokens", offsetof(lsi_step_record, n_tokens), true},
    {"n_workers", offsetof(lsi_step_record, n_workers), true},
    {"step_ms", offsetof(lsi_step_record, step_ms), false},
    {"forward_ms", offsetof(lsi_step_record, forward_ms), false},
    {"backward_ms", offsetof(lsi_step_record, backward_ms), false},
    {"optimizer_ms", offsetof(lsi_step_record, optimizer_ms), false},
    {"comm_ms", offsetof(lsi_step_record, comm_ms), false},
    {"comm_exposed_ms", offsetof(lsi_step_record, comm_exposed_ms), false},
    {"wait_ms", offsetof(lsi_step_record, wait_ms), false},
    {"bytes_sent", offsetof(lsi_step_record, bytes_sent), true},
    {"n_skipped", offsetof(lsi_step_record, n_skipped), true},
};

static json_t *step_to_json(const lsi_step_record *record) {
    json_t *line = json_object();
    int failed = 0;
    for (size_t i = 0; i < sizeof STEP_FIELDS / sizeof *STEP_FIELDS; i++) {
        const char *place = (const char *)record + STEP_FIELDS[i].offset;
        json_t *value = STEP_FIELDS[i].is_integer ? json_integer(*(const int64_t *)place)
                                                  : real_or_null(*(const double *)place);
        failed |= json_object_set_new(line, STEP_FIELDS[i].name, value);
    }
    double tokens_per_s = (double)record->n_tokens / (record->step_ms / 1e3);
    failed |= json_object_set_new(line, "tokens_per_s", real_or_null(tokens_per_s));
    tokens_per_s /= (double)record->n_workers;
    failed |= json_object_set_new(line, "tokens_per_s_per_worker", real_or_null(tokens_per_s));
    if (!failed) return line;
    json_decref(line);
    return NULL;
}

void lsi_metrics_step(lsi_metrics *metrics, const lsi_step_record *record) {
    if (!metrics || metrics->status != LS_OK) return;
    metrics->status = write_line(metrics, step_to_json(record));
}

void lsi_metrics_evaluation(lsi_metrics *metrics, int64_t step, double val_loss, double accuracy) {
    if (!metrics || metrics->status != LS_OK) return;
    json_t *known = isnan(accuracy) ? NULL : real_or_null(accuracy);
    json_t *line = json_pack("{s:I, s:o, s:o*}", "step", (json_int_t)step, "val_loss",
                             real_or_null(val_loss), "val_accuracy", known);
    metrics->status = write_line(metrics, line);
}

ls_status lsi_metrics_close(lsi_metrics *metrics) {
    if (!metrics) return LS_OK;
    /* Some file systems report a failed write only now. */
    if (close(metrics->fd) != 0 && metrics->status == LS_OK) {
        metrics->status = LS_ERR_IO;
        metrics->error = errno;
    }
    ls_status status = metrics->status;
    if (status == LS_ERR_IO) {
        errno = metrics->error;
        status = lsi_fail_errno(status, "%s: the metrics file ends early", metrics->path);
    } else if (status != LS_OK) {
        status = lsi_fail(status, "%s: the metrics file ends early: memory ran out", metrics->path);
    }
    lsi_free(metrics->path);
    lsi_free(metrics);
    return status;
}
