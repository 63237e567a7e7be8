/* System calls that fail on request, for failures that no test can make otherwise: a disk that
 * loses writes, a file system that lacks an operation. For child processes: there is no way back.
 */
#ifndef LSI_HARNESS_REFUSE_H
#define LSI_HARNESS_REFUSE_H

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* From now on system call `number` fails with `error` if argument `at` (from 0) has a bit of the
 * mask. false: this machine has no filters of system calls. */
static inline bool refuse_call(long number, int at, uint32_t mask, int error) {
    uint32_t low_word = (uint32_t)(offsetof(struct seccomp_data, args) + (size_t)at * 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    low_word += 4;
#endif
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, low_word),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, mask, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof steps / sizeof steps[0], steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

#endif
