#!/usr/bin/env bash
# Prints docs/reference/parallel.md: the functions and types of the headers below, with what their
# comments say. An example is the first line that calls the function in examples/ or docs/.
#
#     tools/reference.sh >docs/reference/parallel.md
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

readonly headers=(parallel hook param)

# A header opens with a comment; what counts after that lies between the two extern "C" blocks. At
# the left margin stand: comments, which belong to what follows up to the next one (or are the
# heading of a section, with dashes), functions (LS_API … ;) and other code.
read_header() { # path
    awk '
    function plain(line) {
        sub(/ ?\*\/$/, "", line); sub(/^\/\* ?/, "", line); sub(/^ \* ?/, "", line)
        return line
    }
    function flush() {
        if (declared != "") {
            print "#### " names "\n"
            print kind(comment section) "\n"
            if (comment != "") print marked(comment)
            print declared
            printf "%s", examples_of
        } else if (comment != "" || code != "") {
            if (comment != "") print marked(comment)
            if (code != "") print code
        }
        comment = declared = names = code = examples_of = ""
    }
    function kind(text) {
        if (text !~ /[Cc]ollective/) return "*local*"
        if (text ~ /[Ll]ocal/) return "*local; collective where the text says so*"
        return "*collective" (text ~ /blocks/ ? ", blocks*" : "*")
    }
    function marked(text) { # pointers are no emphasis
        while (match(text, /(^|[ (\n])\*[a-z_]+/)) {
            at = RSTART + index(substr(text, RSTART, RLENGTH), "*") - 1
            end = RSTART + RLENGTH
            text = substr(text, 1, at - 1) "`" substr(text, at, end - at) "`" substr(text, end)
        }
        return text
    }
    function example(name,   command, line) {
        command = "grep -hE \"^ +.*\\b" name "\\(\" examples/*/*.c docs/*.md | head -n 1"
        if ((command | getline line) > 0) {
            sub(/^ +/, "", line); sub(/ *\/\*.*\*\/$/, "", line)
            examples_of = examples_of "Example: `" line "`\n\n"
        }
        close(command)
    }
    function end_function(   name) {
        match(declared_now, /ls_[a-z0-9_]+\(/)
        name = substr(declared_now, RSTART, RLENGTH - 1)
        names = names (names == "" ? "" : ", ") name
        declared = declared declared_now "\n"
        example(name)
    }
    !opened { # the comment that opens the header
        if (/^#ifndef/) { opened = 1; print marked(head) } else head = head plain($0) "\n"
        next
    }
    /^extern "C"/ { inside = 1; getline; next }
    !inside || /^#ifdef __cplusplus/ { if (inside) exit; next }
    in_comment || /^\/\*/ {
        if (!in_comment) flush()
        in_comment = !/\*\/$/
        comment = comment plain($0) "\n"
        if (!in_comment && comment ~ /^---- /) {
            section = comment; sub(/^---- /, "", section)
            split(section, part, " ----")
            print "### " part[1] "\n"
            comment = substr(section, length(part[1]) + 6)
            sub(/^[;.]? */, "", comment); sub(/ *----\n$/, "\n", comment)
            if (comment ~ /^[ \n]*$/) comment = ""
        }
        next
    }
    in_function || /^LS_API/ {
        line = $0
        if (!in_function) {
            sub(/^LS_API (LS_CHECKED )?/, "", line)
            cut = length($0) - length(line)
            declared_now = ""
        } else
            line = substr(line, cut + 1)
        declared_now = declared_now "    " line "\n"
        in_function = !/;$/
        if (!in_function) end_function()
        next
    }
    in_code || /^(typedef|enum|#define|static inline|})/ {
        if (!in_code && declared != "") flush()
        code = code "    " $0 "\n"
        if (!in_code) {
            in_code = /^#define/ ? "define" : "block"
            if (/;$/) { in_code = ""; next }
        }
        if (in_code == "define" ? !/\\$/ : /^}/) in_code = ""
        next
    }
    END { flush() }' "$1"
}

cat <<'HEAD'
# Reference: DDP in C

Made by `tools/reference.sh` from the headers' comments; [ddp.md](../ddp.md) is the guide, [hooks.md](../hooks.md) the one
for hooks. All functions that return `ls_status` leave a message for the calling thread when it is not `LS_OK`
(`ls_last_message`). *Collective*: called by all ranks in the same order; *local*: asks no other rank. One thread at a time
per object.

HEAD
for header in "${headers[@]}"; do
    printf '## lockstep/%s.h\n\n' "$header"
    read_header "include/lockstep/$header.h"
done | cat -s
