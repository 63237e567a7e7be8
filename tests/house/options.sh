#!/usr/bin/env bash
# docs/options.md is what the option tables say, and its links and those of the other pages lead
# somewhere.
. "$(dirname "$0")/house.sh"

"$LS_BUILD/lockstep" help --markdown >"$work/options.md"
diff -u "$LS_SOURCE/docs/options.md" "$work/options.md" ||
    fault "docs/options.md is old: build/lockstep help --markdown >docs/options.md"

for page in "$LS_SOURCE"/*.md "$LS_SOURCE"/docs/*.md "$LS_SOURCE"/docs/*/*.md; do
    folder=$(dirname "$page")
    while read -r target; do
        case $target in http*|'#'*|'') continue ;; esac
        [ -e "$folder/${target%%#*}" ] || fault "${page#"$LS_SOURCE"/}: no such file: $target"
    done < <(grep -oE '\]\([^)]+\)' "$page" | sed -E 's/^\]\(//; s/\)$//')
done
finish
