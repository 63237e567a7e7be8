#!/usr/bin/env bash
# Lockstep works where machines are narrow: with a small /dev/shm or none, inside a user namespace,
# with a process namespace for each worker, with one core for two or eight workers. Collectives are
# checked element by element by `lockstep bench`. What the system forbids is said and left out.
. "$(dirname "$0")/house.sh"

lockstep=$LS_BUILD/lockstep
own_loop=$LS_BUILD/examples/own_loop

try() { # what command…
    local what=$1
    shift
    timeout 120 "$@" >"$work/log" 2>&1 || {
        fault "$what: exit $?"
        tail -n 5 "$work/log"
    }
}

# Small and large, in shared and in private buffers.
try_collectives() { # what n command before…
    local what=$1 n=$2 buffers collective
    shift 2
    for buffers in shared plain; do
        for collective in allreduce alltoall; do
            try "$what, $n workers, $collective, $buffers" "$@" "$lockstep" bench "$collective" \
                --workers "$n" --buffers $buffers -b 64 -e 256K -f 64 -n 3 -w 1 --check 1
        done
    done
}

if taskset -c 0 true 2>/dev/null; then
    core=$(taskset -cp $$ | sed -E 's/.*: ([0-9]+).*/\1/')
    for n in 2 8; do
        try_collectives "one core" $n taskset -c "$core"
        LOCKSTEP_PROGRESS=thread try_collectives "one core, threads" $n taskset -c "$core"
    done
    try "one core, a training loop" taskset -c "$core" "$lockstep" run --workers 8 -- "$own_loop"
else
    echo "left out: taskset does not work here"
fi

if unshare -Ur true 2>/dev/null; then
    try_collectives "user namespace" 3 unshare -Ur
else
    echo "left out: this system forbids user namespaces"
fi

# What is mounted on /dev/shm; the last is as good as none: nothing can be made in it.
for options in size=64M size=64K ro,mode=0; do
    mount="mount -t tmpfs -o $options none /dev/shm"
    if unshare -Urm sh -c "$mount" 2>/dev/null; then
        try_collectives "/dev/shm with $options" 3 unshare -Urm sh -c "$mount && exec \"\$@\"" sh
    else
        echo "left out: this system forbids mounts (/dev/shm with $options)"
    fi
done

# Pids of the others mean nothing to such a worker, and it must not take them for dead.
if unshare -Urpf --mount-proc true 2>/dev/null; then
    try "a process namespace for each worker" "$lockstep" run --workers 3 -- \
        unshare -Urpf --mount-proc "$own_loop"
else
    echo "left out: this system forbids process namespaces"
fi
finish
