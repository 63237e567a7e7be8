#!/usr/bin/env bash
# What the libraries show: liblockstep.so exports exactly the list in symbols.txt, so an interface
# changes only on purpose; liblockstep.a, which cannot hide names, has only ls_… and lsi_….
. "$(dirname "$0")/house.sh"

readonly list=$LS_SOURCE/tests/house/symbols.txt
nm -D --defined-only "$LS_BUILD/lib/liblockstep.so" | awk '{ print $3 }' | sort >"$work/found"
if ! diff -u --label expected --label found "$list" "$work/found"; then
    fault "liblockstep.so: exports differ from tests/house/symbols.txt (if meant, change the list)"
fi
while read -r name; do
    fault "liblockstep.so: $name is not a name of the public interface (ls_…)"
done < <(grep -v '^ls_' "$work/found" || true)
while read -r name; do
    fault "liblockstep.a: $name could clash with a program's own names: expected ls_… or lsi_…"
done < <(nm -g --defined-only "$LS_BUILD/lib/liblockstep.a" 2>/dev/null |
    awk 'NF == 3 { print $3 }' | grep -vE '^lsi?_|^_|^DW\.' || true)
finish
