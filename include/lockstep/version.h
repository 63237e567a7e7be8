/* Version of the library. */
#ifndef LOCKSTEP_VERSION_H
#define LOCKSTEP_VERSION_H

#include <lockstep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LS_VERSION_MAJOR 0
#define LS_VERSION_MINOR 1
#define LS_VERSION_PATCH 0

/* "0.1.0" of the library that runs (the macros are those compiled against). */
LS_API const char *ls_version(void);

#ifdef __cplusplus
}
#endif
#endif
