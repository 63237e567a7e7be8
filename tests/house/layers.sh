#!/usr/bin/env bash
# Layers stand on lower layers only: every #include "folder/…" of src/ goes to the layer's own
# folder or to one that src/CMakeLists.txt lists as BELOW it; public headers include only their
# like; README.md's table is the same as CMake's; no folder stands outside the table.
. "$(dirname "$0")/house.sh"

check_includes() { # tree layer below…
    local tree=$1 layer=$2 file line header
    shift 2
    while IFS=: read -r file line header; do
        [ -n "$file" ] || continue
        case " $layer $* " in
        *" ${header%%/*} "*) [[ $header == */* ]] && continue ;;
        esac
        fault "${file#"$tree"/}:$line: includes \"$header\"; expected one from: $layer $*"
    done < <(grep -rnE '^[ \t]*#[ \t]*include[ \t]*"' "$tree/src/$layer" --include='*.[ch]' |
        sed -E 's/^([^:]*:[0-9]*):[^"]*"([^"]*)".*/\1:\2/')
}

check_tree() { # tree
    local tree=$1 name level below folder file
    while read -r name level below; do
        # shellcheck disable=SC2086 # a list of words
        check_includes "$tree" "$name" $below
        grep -qE "^\| $level \| \`src/$name/\` \|" "$tree/src/README.md" ||
            fault "src/README.md: expected a row '| $level | \`src/$name/\` | … |'"
    done < <(read_layers "$tree")
    for folder in "$tree"/src/*/; do
        folder=$(basename "$folder")
        grep -q "^$folder " <<<"$(read_layers "$tree")" || fault "src/$folder/: not in src/CMakeLists.txt"
    done
    for folder in $(sed -nE 's/^\| [0-9]+ \| `src\/([a-z]+)\/`.*/\1/p' "$tree/src/README.md"); do
        [ -d "$tree/src/$folder" ] || fault "src/README.md: src/$folder/ does not exist"
    done
    while IFS= read -r file; do
        fault "${file#"$tree"/}: a public header includes only <lockstep/…> and the C library"
    done < <(grep -rnE '^[ \t]*#[ \t]*include[ \t]*"' "$tree/include")
}

# The check finds what it is there for: one tree with five faults.
bad=$work/bad
mkdir -p "$bad/src/low" "$bad/src/high" "$bad/src/stray" "$bad/include/lockstep"
printf 'lockstep_layer(low LEVEL 0 LIBS m)\nlockstep_program(high LEVEL 1\n  BELOW low)\n' \
    >"$bad/src/CMakeLists.txt"
printf '| 0 | `src/low/` | x |\n' >"$bad/src/README.md"                # 1: no row for high
printf '#include "high/a.h"\n#  include "own.h"\n' >"$bad/src/low/a.c" # 2, 3: up; no folder
printf '#include "low/a.h"\n#include "high/b.h"\n' >"$bad/src/high/a.c" # both fine; 4: stray/
printf '#include "status.h"\n' >"$bad/include/lockstep/a.h"            # 5
n_found=$(check_tree "$bad" | wc -l)
[ "$n_found" -eq 5 ] || fault "expected 5 faults in the bad tree, found $n_found"

check_tree "$LS_SOURCE"
finish
