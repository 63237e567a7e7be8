/* Files: whole-file reads with a size cap, and writes that are complete or absent.
 *
 * A file is written under a temporary name in the same folder, synced, then renamed, then the
 * folder is synced. A crash at any moment leaves the old file or the new one, never a part. */
#ifndef LSI_BASE_FILE_H
#define LSI_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "base/message.h"

typedef struct lsi_file_writer lsi_file_writer;

/* Opens PATH.tmp-<pid> beside path. */
LS_CHECKED ls_status lsi_file_begin(const char *path, lsi_file_writer **writer);
/* Appends, unbuffered; handles short writes; on a full disk LS_ERR_IO names path, written and
 * missing bytes. After a failure every further write and the commit are LS_ERR_STATE. */
LS_CHECKED ls_status lsi_file_write(lsi_file_writer *writer, const void *data, size_t bytes);
/* Syncs and renames; frees the writer whatever happens; on failure the old file stays whole. */
LS_CHECKED ls_status lsi_file_commit(lsi_file_writer *writer);
/* Removes the temporary file and frees the writer; NULL does nothing. */
void lsi_file_cancel(lsi_file_writer *writer);

/* Whole file at once. */
LS_CHECKED ls_status lsi_file_replace(const char *path, const void *data, size_t bytes);
LS_CHECKED ls_status lsi_file_replace_json(const char *path, const json_t *value);
/* A path that does not exist is LS_ERR_NOT_FOUND here and below, other refusals are LS_ERR_IO.
 * Reads up to cap_bytes; a larger file is LS_ERR_FORMAT. *data from lsi_alloc, always followed by
 * a zero byte that is not counted. Directories, empty files are the caller's to judge. */
LS_CHECKED ls_status lsi_file_read(const char *path, size_t cap_bytes, char **data, size_t *bytes);
/* Strict JSON (duplicate keys refused) of at most cap_bytes; errors name file, line and column. */
LS_CHECKED ls_status lsi_file_read_json(const char *path, size_t cap_bytes, json_t **value);
/* Read-only mapping of a whole file; bytes = 0 gives data = NULL. Unmap with lsi_file_unmap. A file
 * that another process shortens meanwhile raises SIGBUS at the lost pages. */
LS_CHECKED ls_status lsi_file_map(const char *path, const void **data, size_t *bytes);
void lsi_file_unmap(const void *data, size_t bytes);
/* Creates a folder and its parents; an existing folder is fine. Checks that it can be written. */
LS_CHECKED ls_status lsi_folder_make(const char *path);

#endif
