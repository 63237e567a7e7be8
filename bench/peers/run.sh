#!/usr/bin/env bash
# The same collectives on the same machine, by Lockstep, by other libraries and by the sketch. Run by
# `make bench-peers`.
#
# Engines take turns: each round runs each engine once, so that a noisy machine disturbs all alike.
# Sizes up to 64 KiB get three times as many rounds as large ones, because they follow the latency
# between processors, which changes within seconds on virtual machines. Of the rounds' medians the
# median is printed, in microseconds, and the median of the rounds' ratios to lockstep with shared
# buffers (above 1: lockstep is faster). Environment:
#
#     RANKS (2)  ROUNDS (3)  ITERATIONS of the large sizes (5)  SIZES  COLLECTIVES  ENGINES
#     LIMIT_S of one engine in one round (180)  BUILD, the build folder (build)
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
programs=$build/bench/peers
ranks=${RANKS:-2}
rounds=${ROUNDS:-3}
iterations=${ITERATIONS:-5}
sizes=${SIZES:-8 1K 8K 64K 512K 1M 4M 16M 25M 64M 256M}
collectives=${COLLECTIVES:-allreduce reducescatter allgather allgather-inplace broadcast}
engines=${ENGINES:-lockstep lockstep-plain openmpi openmpi-tuned mpich mpich-tuned gloo-ring
    gloo-halving sketch}
limit_s=${LIMIT_S:-180}
results=$(mktemp "${TMPDIR:-/tmp}/lockstep-peers.XXXXXX")
trap 'rm -f "$results"' EXIT

# Huge pages for malloc, and no giving back of memory between calls: what an experienced user sets.
tunables=glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592

# Open MPI refuses to run as root, and more ranks than processors, unless told.
openmpi=(mpirun.openmpi -np "$ranks")
[ "$(id -u)" -ne 0 ] || openmpi+=(--allow-run-as-root)
[ "$ranks" -le "$(nproc)" ] || openmpi+=(--oversubscribe)
mpich=(mpiexec.mpich -n "$ranks")
lockstep=("$build/lockstep" run --workers "$ranks" --)

command_of() { # engine; into `command`, the words of the core follow
    case $1 in
    lockstep) command=("${lockstep[@]}" "$programs/lockstep") ;;
    lockstep-plain) command=(env PEER_BUFFERS=plain "${lockstep[@]}" "$programs/lockstep") ;;
    openmpi) command=("${openmpi[@]}" "$programs/openmpi") ;;
    openmpi-tuned) command=(env "GLIBC_TUNABLES=$tunables" "${openmpi[@]}" "$programs/openmpi") ;;
    mpich) command=("${mpich[@]}" "$programs/mpich") ;;
    mpich-tuned) command=(env "GLIBC_TUNABLES=$tunables" "${mpich[@]}" "$programs/mpich") ;;
    gloo-ring) command=(env "PEER_RANKS=$ranks" PEER_GLOO=ring "$programs/gloo") ;;
    gloo-halving)
        command=(env "PEER_RANKS=$ranks" PEER_GLOO=halving-doubling "$programs/gloo") ;;
    sketch) command=(env "PEER_RANKS=$ranks" "$programs/sketch") ;;
    *)
        echo "bench-peers: unknown engine '$1'" >&2
        exit 2
        ;;
    esac
}

is_built() {
    case $1 in
    gloo-*) [ -x "$programs/gloo" ] ;;
    *) [ -x "$programs/${1%-*}" ] ;;
    esac
}

present=()
for engine in $engines; do
    command_of "$engine"
    is_built "$engine" && present+=("$engine")
done
if [ "${#present[@]}" -eq 0 ]; then
    echo "bench-peers: none of these engines is built: $engines" >&2
    exit 1
fi

echo "# $ranks ranks on $(nproc) processors; $rounds rounds; engines: ${present[*]}"
echo "# float32 sum; each rank rewrites its buffers before each call; time of the slowest rank, median"
echo "# tuned: GLIBC_TUNABLES=$tunables"
bytes_of() { # 64K
    case $1 in
    *K) echo $((${1%K} << 10)) ;;
    *M) echo $((${1%M} << 20)) ;;
    *G) echo $((${1%G} << 30)) ;;
    *) echo "$1" ;;
    esac
}
small=() large=()
for size in $sizes; do
    if [ "$(bytes_of "$size")" -le 65536 ]; then small+=("$size"); else large+=("$size"); fi
done

run_round() { # round, sizes
    [ -n "$2" ] || return 0
    for engine in "${present[@]}"; do
        command_of "$engine"
        if ! timeout "$limit_s" "${command[@]}" "$collectives" "$2" "$iterations" \
                </dev/null >"$results.now" 2>"$results.err"; then
            echo "# round $1: $engine failed or took more than $limit_s s:" \
                "$(head -n 1 "$results.err")"
        fi
        sed -n "s/^\([a-z-]* [0-9]* [0-9.]*\)\$/$engine $1 \1/p" "$results.now" >>"$results"
        rm -f "$results.now" "$results.err"
    done
}

latencies=()
for round in $(seq $((3 * rounds))); do
    latencies+=("$("$programs/sketch" --latency)")
    run_round "$round" "${small[*]}"
    [ "$round" -gt "$rounds" ] || run_round "$round" "${large[*]}"
done
echo "# one-way latency between two processors before each round, ns: ${latencies[*]}"

# Lines "engine round collective bytes microseconds" in; one table per collective out.
awk -v engines="${present[*]}" -v collectives="$collectives" '
function median(list,    v, n, i, j, t) {
    n = split(list, v, " ")
    for (i = 2; i <= n; i++)
        for (j = i; j > 1 && v[j - 1] + 0 > v[j] + 0; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
    return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
}
function text(bytes) {
    if (bytes >= 1048576 && bytes % 1048576 == 0) return bytes / 1048576 "M"
    if (bytes >= 1024 && bytes % 1024 == 0) return bytes / 1024 "K"
    return bytes
}
function add_ratio(list, a, b) { return a != "" && b > 0 ? list " " a / b : list }
function shown(list) { return list == "" ? "-" : sprintf("%.2f", median(list)) }
{
    all[$3, $4, $1] = all[$3, $4, $1] " " $5
    of_round[$3, $4, $1, $2] = $5
    if ($2 > n_rounds) n_rounds = $2
    if (!(($3, $4) in seen)) { seen[$3, $4] = 1; sizes[$3] = sizes[$3] " " $4 }
}
# Medians over the rounds of best peer / lockstep and sketch / lockstep.
function ratios(key,    r, e, best, here, us, peers, sketches) {
    for (r = 1; r <= n_rounds; r++) {
        here = key SUBSEP "lockstep" SUBSEP r
        if (!(here in of_round)) continue
        best = ""
        for (e = 1; e <= n; e++) {
            us = key SUBSEP engine[e] SUBSEP r
            if (engine[e] ~ /^(lockstep|sketch)/ || !(us in of_round)) continue
            if (best == "" || of_round[us] < best) best = of_round[us]
        }
        peers = add_ratio(peers, best, of_round[here])
        us = key SUBSEP "sketch" SUBSEP r
        if (us in of_round) sketches = add_ratio(sketches, of_round[us], of_round[here])
    }
    return sprintf("%14s %15s", shown(peers), shown(sketches))
}
END {
    n = split(engines, engine, " ")
    n_collectives = split(collectives, collective, " ")
    for (c = 1; c <= n_collectives; c++) {
        printf "\n%s, microseconds\n%8s", collective[c], "bytes"
        for (e = 1; e <= n; e++) printf " %14s", engine[e]
        printf " %14s %15s\n", "peer/lockstep", "sketch/lockstep"
        n_sizes = split(sizes[collective[c]], size, " ")
        for (s = 1; s <= n_sizes; s++) {
            printf "%8s", text(size[s])
            for (e = 1; e <= n; e++) {
                key = collective[c] SUBSEP size[s] SUBSEP engine[e]
                printf " %14s", key in all ? sprintf("%.2f", median(all[key])) : "-"
            }
            printf " %s\n", ratios(collective[c] SUBSEP size[s])
        }
    }
    print "\npeer/lockstep: the fastest of the other libraries; above 1 lockstep (shared buffers) is faster"
}' "$results"
