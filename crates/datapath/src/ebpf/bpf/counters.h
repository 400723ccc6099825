/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What becomes of connections, counted per Service port and backend. Not on each processor by itself: such a map takes its
 * memory piece by piece, which holds up the start of a daemon, and a connection is rare enough for an atomic addition.
 */
#ifndef SIGNPOST_COUNTERS_H
#define SIGNPOST_COUNTERS_H

#include "maps.h"

/* `backend` is all zero for what met none. */
static __always_inline struct counter *counter_of(__u64 service, const struct endpoint *backend)
{
	struct counter_key key = { .service = service, .backend = *backend };
	struct counter *counter = bpf_map_lookup_elem(&counters, &key);
	struct counter none = {};

	if (counter)
		return counter;
	bpf_map_update_elem(&counters, &key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&counters, &key);
}

static __always_inline void add(__u64 *number, __u64 more)
{
	__sync_fetch_and_add(number, more);
}

/* A connection, or what an unconnected socket has with a backend, began. */
SEPARATE int count_connection(__u64 service, const struct endpoint *backend)
{
	struct counter *counter = backend && settings.counting ? counter_of(service, backend) : 0;

	if (counter)
		add(&counter->connections, 1);
	return 0;
}

SEPARATE int count_refused(__u64 service)
{
	struct endpoint nobody = {};
	struct counter *counter = settings.counting ? counter_of(service, &nobody) : 0;

	if (counter)
		add(&counter->refused, 1);
	return 0;
}

#endif
