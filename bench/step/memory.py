"""Memory of running processes, as the system counts it.

Resident size (RSS) counts a page that several processes map once for each of them; proportional
size (PSS) gives each its part, so the sum over processes is what the machine spends, if no program
outside maps the same files. The system keeps the peak of the first, not of the second, which takes
milliseconds to find: it is looked at every EVERY_S from the moment that only steps are left whose
time does not count until the processes end, forward, backward and update alike. The largest look
counts; a peak between two looks is missed."""
EVERY_S = 0.05


def available_bytes():
    for line in open("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def pss_bytes(pid):
    try:
        for line in open(f"/proc/{pid}/smaps_rollup"):
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # has ended
    return 0


def with_descendants(pid):
    try:
        children = open(f"/proc/{pid}/task/{pid}/children").read().split()
    except OSError:
        children = []
    return [pid] + [p for child in children for p in with_descendants(int(child))]


def n_lines(path):
    try:
        return open(path).read().count("\n")
    except OSError:
        return 0  # not made yet


def watch_pss(metrics, n_steps, found):
    """For run_together: once each of the files metrics has n_steps lines, a step each, adds the
    proportional sizes of all processes together to the list found, until the first has ended."""
    def watch(pids, ended):
        while not ended.wait(EVERY_S):
            if all(n_lines(path) >= n_steps for path in metrics):
                sizes = [[pss_bytes(p) for p in with_descendants(pid)] for pid in pids]
                if all(size[0] for size in sizes):
                    found.append(sum(map(sum, sizes)))
    return watch


def largest_each(looks, n_processes):
    """Of looks at all processes together, a process's; None: there was no time to look."""
    return max(looks) / n_processes if looks else None
