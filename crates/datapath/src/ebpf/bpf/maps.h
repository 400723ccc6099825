/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The maps. The daemon pins them, and gives them their sizes. */
#ifndef SIGNPOST_MAPS_H
#define SIGNPOST_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "layout.h"

/* A function that the verifier looks at once, not at each call: else it walks every way through all of them. */
#define SEPARATE __attribute__((noinline))

/* Before a loop: written out, since Linux before 6.3 takes no loop whose last step runs on into its first. */
#define UNROLLED _Pragma("unroll")

/* Written by the daemon alone, memory as needed. */
#define TABLE(NAME, KEY, VALUE)                                                                                        \
	struct {                                                                                                       \
		__uint(type, BPF_MAP_TYPE_HASH);                                                                       \
		__uint(map_flags, BPF_F_NO_PREALLOC);                                                                  \
		__uint(max_entries, 1024);                                                                             \
		__type(key, KEY);                                                                                      \
		__type(value, VALUE);                                                                                  \
	} NAME SEC(".maps")

/* The same by ranges of addresses: the longest that fits is found. */
#define RANGES(NAME, KEY, MOST)                                                                                        \
	struct {                                                                                                       \
		__uint(type, BPF_MAP_TYPE_LPM_TRIE);                                                                   \
		__uint(map_flags, BPF_F_NO_PREALLOC);                                                                  \
		__uint(max_entries, MOST);                                                                             \
		__type(key, KEY);                                                                                      \
		__type(value, __u32);                                                                                  \
	} NAME SEC(".maps")

/* Written by the programs; the longest unused goes when it is full. */
#define MEMORY(NAME, KEY, VALUE)                                                                                       \
	struct {                                                                                                       \
		__uint(type, BPF_MAP_TYPE_LRU_HASH);                                                                   \
		__uint(max_entries, 1024);                                                                             \
		__type(key, KEY);                                                                                      \
		__type(value, VALUE);                                                                                  \
	} NAME SEC(".maps")

const volatile struct settings settings;

TABLE(frontends, struct frontend_key, struct frontend);
TABLE(slots, struct slot_key, struct endpoint);
TABLE(tables, struct slot_key, struct chunk);
/* Those of the node's addresses at which node ports answer. */
TABLE(node_port_ips, struct address, __u32);
TABLE(nodes, __u32, struct node);
/* All of the node's addresses, and those of its pods that are endpoints. */
TABLE(node_ips, struct address, __u32);
TABLE(local_endpoints, struct address, __u32);
RANGES(pod_networks, struct range_key, 4096);
RANGES(sources, struct source_key, 1 << 18);
/* Cookies of network namespaces whose sockets are left alone. */
TABLE(left_out, __u64, __u32);

MEMORY(peers, struct peer_key, struct peer);
MEMORY(flows, struct flow_key, struct endpoint);
MEMORY(counters, struct counter_key, struct counter);
MEMORY(affinities, struct affinity_key, struct affinity);

#endif
