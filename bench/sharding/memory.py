"""Memory of running processes, as the system counts it.

Resident size (RSS) counts a page that several processes map once for each of them; proportional
size (PSS) gives each its part, so the sum over processes is what the machine spends. The system
keeps the peak of the first, not of the second, which takes milliseconds to find: it is looked at
while steps run whose time does not count."""
EVERY_S = 0.2


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
    """For run_together: once the file metrics has n_steps lines, adds the proportional sizes of all
    processes together to the list found."""
    def watch(pids, ended):
        while not ended.wait(EVERY_S):
            if n_lines(metrics) >= n_steps:
                found.append(sum(pss_bytes(p) for pid in pids for p in with_descendants(pid)))
    return watch
