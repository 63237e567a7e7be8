#!/usr/bin/env bash
# tools/setup.sh --check has nothing to ask for where the tests were built, and says what it takes.
. "$(dirname "$0")/house.sh"

"$LS_SOURCE/tools/setup.sh" --check build test || fault "setup.sh --check: exit $?"
status=0
"$LS_SOURCE/tools/setup.sh" nonsense 2>"$work/log" || status=$?
[ "$status" -eq 2 ] || fault "setup.sh nonsense: expected exit 2, found $status"
grep -q usage "$work/log" || fault "setup.sh nonsense: no usage line, found: $(cat "$work/log")"
finish
