/* Element types of buffers, parameters and files. */
#ifndef LOCKSTEP_DTYPE_H
#define LOCKSTEP_DTYPE_H

#include <stddef.h>

#include <lockstep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, number, bytes per element, name in safetensors files) */
#define LS_DTYPE_TABLE(X)                                                                          \
    X(F32, 1, 4, "F32")                                                                            \
    X(F64, 2, 8, "F64")                                                                            \
    X(BF16, 3, 2, "BF16")                                                                          \
    X(F16, 4, 2, "F16")                                                                            \
    X(I8, 5, 1, "I8")                                                                              \
    X(I32, 6, 4, "I32")                                                                            \
    X(I64, 7, 8, "I64")                                                                            \
    X(U8, 8, 1, "U8")

typedef enum ls_dtype {
#define LS_DTYPE_ENUM(name, number, bytes, text) LS_DTYPE_##name = number,
    LS_DTYPE_TABLE(LS_DTYPE_ENUM)
#undef LS_DTYPE_ENUM
} ls_dtype;

/* Bytes per element; 0 for a number outside the table. Any thread. */
LS_API size_t ls_dtype_bytes(ls_dtype dtype);
/* "F32" and so on; "?" for a number outside the table. Any thread. */
LS_API const char *ls_dtype_name(ls_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
