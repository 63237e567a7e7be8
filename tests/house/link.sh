#!/usr/bin/env bash
# An upward call does not link. First the rule of cmake/LockstepLayer.cmake in a tree of two toy
# layers; then the real archives: for each layer, code that calls one function of every layer that
# is not below it, linked as the rule does, must miss exactly those.
. "$(dirname "$0")/house.sh"

toy_builds() { # configure and build the toy; output in $work/log
    cmake -S "$work/toy" -B "$work/toy/build" -DCMAKE_C_COMPILER="$LS_CC" \
        -DLAYER_MODULE="$LS_SOURCE/cmake/LockstepLayer.cmake" >"$work/log" 2>&1 &&
        env -u MAKEFLAGS cmake --build "$work/toy/build" >>"$work/log" 2>&1
}

check_rule() {
    mkdir -p "$work/toy/low" "$work/toy/high"
    cat >"$work/toy/CMakeLists.txt" <<'TOY'
cmake_minimum_required(VERSION 3.25)
project(toy C)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
add_library(lockstep_compile INTERFACE)
include(${LAYER_MODULE})
lockstep_layer(low LEVEL 0)
lockstep_layer(high LEVEL 1 BELOW low)
TOY
    echo 'int low(void); int low(void) { return 1; }' >"$work/toy/low/a.c"
    echo 'int low(void); int high(void); int high(void) { return low(); }' >"$work/toy/high/a.c"
    toy_builds || fault "a downward call: expected to link, found: $(tail -n 20 "$work/log")"

    echo 'int low(void); int high(void); int low(void) { return high(); }' >"$work/toy/low/a.c"
    if toy_builds || ! grep -q "undefined reference to .high'" "$work/log"; then
        fault "an upward call: expected an undefined reference, found: $(tail -n 20 "$work/log")"
    fi
}

archive() { echo "$LS_BUILD/lib/liblockstep_$1.a"; }

# A layer with all that stands below it, near and far: the table lists lower layers first, so one
# pass from its end finds them all.
closure() { # layer
    tac <<<"$table" | awk -v layer="$1" '
        BEGIN { wanted[layer] = 1 }
        $1 in wanted { print $1; for (i = 3; i <= NF; i++) wanted[$i] = 1 }'
}

link_probe() { # layers of the link…; the linker's words in $work/log
    local layer archives=()
    for layer in "$@"; do archives+=("$(archive "$layer")"); done
    "$LS_CC" -shared -Wl,--no-undefined -o "$work/probe.so" "$work/probe.o" \
        -Wl,--start-group "${archives[@]}" -Wl,--end-group >"$work/log" 2>&1 || true
}

check_layer() { # layer
    local layer=$1 below other symbol symbols=()
    below=$(closure "$layer" | tr '\n' ' ')
    for other in $layers; do
        [[ " $below " == *" $other "* ]] || symbols+=("${symbol_of[$other]}")
    done
    [ "${#symbols[@]}" -gt 0 ] || return 0
    {
        printf 'void %s(void);\n' "${symbols[@]}"
        echo 'void probe(void); void probe(void) {'
        printf '    %s();\n' "${symbols[@]}"
        echo '}'
    } >"$work/probe.c"
    "$LS_CC" -fPIC -fno-builtin -c -o "$work/probe.o" "$work/probe.c"

    # shellcheck disable=SC2086 # lists of words
    link_probe $below
    for symbol in "${symbols[@]}"; do
        grep -q "undefined reference to .$symbol'" "$work/log" ||
            fault "$layer: a call of $symbol links, though its layer is not below"
    done
    # shellcheck disable=SC2086
    link_probe $layers
    for symbol in "${symbols[@]}"; do
        ! grep -q "undefined reference to .$symbol'" "$work/log" ||
            fault "$layer: $symbol is undefined even with all layers: this check is broken"
    done
}

check_rule
table=$(read_layers "$LS_SOURCE")
layers="" # those with an archive: all but the program
declare -A symbol_of # one function of each
while read -r layer _; do
    [ -f "$(archive "$layer")" ] || continue
    layers+="$layer "
    symbol_of[$layer]=$(nm -g --defined-only "$(archive "$layer")" 2>/dev/null |
        awk '$2 == "T" && !found { found = $3 } END { print found }')
done <<<"$table"
[ -n "$layers" ] || fault "no archive of a layer in $LS_BUILD/lib"
for layer in $layers; do check_layer "$layer"; done
finish
