/* `lockstep version`: what this build is and what it runs on, for reports of faults. */
#include <stdio.h>

#include <lockstep/version.h>

#include "base/cpu.h"
#include "cli/bf16_products.h"
#include "cli/command.h"
#include "tensor/gemm.h"

exit_code run_version(int argc, char **argv) {
    if (argc > 0) return refuse_words("version", argv[0]);
    printf("lockstep %s\n", ls_version());
    printf("processor        %s, %d usable\n", lsi_cpu_name(), lsi_cpu_count());
    printf("matrix products  %s\n", lsi_gemm_library());
    printf("bf16 products    %s\n", bf16_products_in_words());
    printf("compiler         %s\n", __VERSION__);
    return finish_output(EXIT_DONE);
}
