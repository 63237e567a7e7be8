#!/usr/bin/env bash
# Each public header compiles alone, twice included, as strict C11 and as C++17, without a warning.
. "$(dirname "$0")/house.sh"

for path in "$LS_SOURCE"/include/lockstep/*.h; do
    header=lockstep/$(basename "$path")
    printf '#include <%s>\n#include <%s>\nint main(void) { return 0; }\n' "$header" "$header" \
        >"$work/a.c"
    cp "$work/a.c" "$work/a.cpp"
    flags=(-I"$LS_SOURCE/include" -pedantic -Wall -Wextra -Wundef -Werror -fsyntax-only)
    "$LS_CC" -std=c11 -Wstrict-prototypes "${flags[@]}" "$work/a.c" || fault "$header: not C11"
    "$LS_CXX" -std=c++17 "${flags[@]}" "$work/a.cpp" || fault "$header: not C++17"
    [ "$header" = lockstep/lockstep.h ] ||
        grep -q "^#include <$header>" "$LS_SOURCE/include/lockstep/lockstep.h" ||
        fault "$header: lockstep.h does not take it in"
done
finish
