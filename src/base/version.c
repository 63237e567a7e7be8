/* The version of the library that runs; one number, kept in <lockstep/version.h>. */
#include <lockstep/version.h>

#define TEXT_OF(number) #number
#define DOTTED(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *ls_version(void) {
    return DOTTED(LS_VERSION_MAJOR, LS_VERSION_MINOR, LS_VERSION_PATCH);
}
