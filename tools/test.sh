#!/usr/bin/env bash
# Runs all tests of build/ (what `make test` does last). Arguments go to ctest: `tools/test.sh -R
# comm` runs some, `-LE slow` leaves the slow ones out. ctest words its closing line differently
# from version to version, so one that does not change comes after it.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly report=build/tests.xml
rm -f $report
status=0
ctest --test-dir build --output-on-failure --no-tests=error --no-label-summary --parallel 2 \
    --output-junit "$PWD/$report" "$@" || status=$?

if [ -f $report ]; then
    awk -F'"' '/^\ttests=/ { n = $2 }
        /^\tfailures=/ { failed = $2 }
        /^\tskipped=/ { skipped = $2 + 0 }
        END { printf "\n%d passed, %d failed%s\n", n - failed - skipped, failed,
                     (skipped ? ", " skipped " skipped" : "") }' $report
fi
exit $status
