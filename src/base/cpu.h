/* How many processors this process may use. */
#ifndef LSI_BASE_CPU_H
#define LSI_BASE_CPU_H

/* The smaller of the affinity mask and the cgroup quota (rounded up), at least 1. */
int lsi_cpu_count(void);
/* The quota part of it: processors that the control groups listed in the file cgroup_list (of the
 * form of /proc/self/cgroup), mounted at cgroup_root, pay for; INT_MAX if they set no limit. */
int lsi_cpu_quota(const char *cgroup_list, const char *cgroup_root);
/* Binds this process and the threads it will start to part `part` of n_parts equal parts of its
 * affinity mask, in the order of processor numbers; where there are fewer processors than parts,
 * neighbours share one. Says 1, or 0 where the system refuses and nothing was done. */
int lsi_cpu_bind(int part, int n_parts);
/* "AMD EPYC …": model name of the processor, "unknown" where the system does not say. */
const char *lsi_cpu_name(void);

#endif
