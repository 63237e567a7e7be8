#!/usr/bin/env bash
# docs/reference/parallel.md is what the headers say, and has every public function of parallel.h
# and hook.h, with an example. The functions are found here in another way than the page is made.
. "$(dirname "$0")/house.sh"

readonly page=docs/reference/parallel.md
"$LS_SOURCE/tools/reference.sh" >"$work/parallel.md"
diff -u --label "$page" --label headers "$LS_SOURCE/$page" "$work/parallel.md" ||
    fault "$page is old: tools/reference.sh >$page"

for header in parallel hook; do
    printf '#include <lockstep/%s.h>\n' "$header" |
        "$LS_CC" -I"$LS_SOURCE/include" -E -xc - >"$work/$header.i"
    names=$(awk -v path="lockstep/$header.h" '/^# [0-9]/ { on = index($3, path) } on && !/^#/' \
        "$work/$header.i" | tr '\n' ' ' | grep -oE '\bls_[a-z0-9_]+\(' | tr -d '(' | sort -u)
    [ -n "$names" ] || fault "$header.h: no functions found"
    for name in $names; do
        section=$(awk -v name="$name" '/^#/ { on = /^####/ && $0 ~ "[ ]" name "(,|$)" } on' \
            "$LS_SOURCE/$page")
        [ -n "$section" ] || { fault "$page: $header.h's $name is missing"; continue; }
        grep -qE "^Example: .*\\b$name\\(" <<<"$section" ||
            fault "$page: $name has no example: call it in examples/ or in a snippet in docs/"
    done
done
finish
