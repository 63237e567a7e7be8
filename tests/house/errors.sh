#!/usr/bin/env bash
# docs/errors.md has the rows of LS_STATUS_TABLE, no other, and a section with an example for each.
. "$(dirname "$0")/house.sh"

readonly page=$LS_SOURCE/docs/errors.md
cat >"$work/rows.c" <<'ROWS'
#include <lockstep/status.h>
#include <stdio.h>
#define ROW(name, number, text, advice) printf("%d\tLS_%s\t%s\t%s\n", number, #name, text, advice);
int main(void) {
    LS_STATUS_TABLE(ROW)
    return 0;
}
ROWS
"$LS_CC" -I"$LS_SOURCE/include" -o "$work/rows" "$work/rows.c"
"$work/rows" | while IFS=$'\t' read -r number name text advice; do
    printf '| %s | [`%s`](#%s) | %s | %s |\n' "$number" "$name" "${name,,}" "$text" "$advice"
done >"$work/expected"
grep -E '^\| [0-9]+ \|' "$page" >"$work/found" || true
diff -u --label LS_STATUS_TABLE --label docs/errors.md "$work/expected" "$work/found" ||
    fault "docs/errors.md: its table is not that of include/lockstep/status.h"

while IFS=$'\t' read -r _ name _; do
    section=$(awk -v head="## $name" '$0 == head { on = 1; next } /^## / { on = 0 } on' "$page")
    [ -n "$section" ] || fault "docs/errors.md: no section '## $name'"
    [ "$name" = LS_OK ] || grep -q '^    [^ ]' <<<"$section" ||
        fault "docs/errors.md: $name: no example of a message"
done < <("$work/rows")
while read -r name; do
    "$work/rows" | cut -f 2 | grep -qx "$name" || fault "docs/errors.md: $name is no status"
done < <(sed -nE 's/^## (LS_[A-Z_]+)$/\1/p' "$page")
finish
