/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Looks a frontend up and chooses a backend, the same for every hook. */
#ifndef SIGNPOST_CHOOSE_H
#define SIGNPOST_CHOOSE_H

#include <linux/in.h>
#include <bpf/bpf_endian.h>

#include "maps.h"

#define NS_PER_S 1000000000ULL
/* The most halvings that find one of 2^20 slots. */
#define HALVINGS 21

static __always_inline int is_ipv4(const struct address *address)
{
	return !address->word[0] && !address->word[1] && address->word[2] == bpf_htonl(0xffff);
}

static __always_inline int same_address(const struct address *a, const struct address *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}

static __always_inline int same_endpoint(const struct endpoint *a, const struct endpoint *b)
{
	return same_address(&a->address, &b->address) && a->port == b->port;
}

/* Whether a comes before b in a set. */
static __always_inline int comes_before(const struct endpoint *a, const struct endpoint *b)
{
	for (int i = 0; i < 4; i++) {
		__u32 mine = bpf_ntohl(a->address.word[i]), other = bpf_ntohl(b->address.word[i]);

		if (mine != other)
			return mine < other;
	}
	return bpf_ntohs(a->port) < bpf_ntohs(b->port);
}

/* The frontend that a destination is: an address of a Service, else a node port. */
static __always_inline struct frontend *find_frontend(const struct endpoint *to, __u8 protocol)
{
	struct frontend_key key = {
		.address = to->address,
		.port = to->port,
		.protocol = protocol,
		.place = AT_ADDRESS,
	};
	struct frontend *frontend = bpf_map_lookup_elem(&frontends, &key);

	if (frontend || !bpf_map_lookup_elem(&node_port_ips, &key.address))
		return frontend;
	if (is_ipv4(&key.address))
		key.address.word[3] = 0;
	else
		__builtin_memset(&key.address, 0, sizeof(key.address));
	key.place = AT_NODE_PORT;
	return bpf_map_lookup_elem(&frontends, &key);
}

static __always_inline struct endpoint *slot(__u64 set, __u32 index)
{
	struct slot_key key = { .set = set, .index = index };

	return bpf_map_lookup_elem(&slots, &key);
}

/* A slot drawn with equal chances; none if the set went away meanwhile. */
static __always_inline struct endpoint *draw(const struct route *route)
{
	return slot(route->set, ((__u64)bpf_get_prandom_u32() * route->count) >> 32);
}

/* A search for a backend among the slots of a set. */
struct search {
	struct endpoint backend;
	__u64 set;
	__u32 low;
	__u32 high;
	__u32 found;
};

static long halve(__u32 step, struct search *search)
{
	__u32 middle = search->low + (search->high - search->low) / 2;
	struct endpoint *at;

	(void)step;
	if (search->low >= search->high)
		return 1;
	at = slot(search->set, middle);
	if (!at)
		return 1;
	if (same_endpoint(at, &search->backend)) {
		search->found = 1;
		return 1;
	}
	if (comes_before(at, &search->backend))
		search->low = middle + 1;
	else
		search->high = middle;
	return 0;
}

/* Whether a backend is still one of a set's. */
SEPARATE int is_backend(const struct route *route, const struct endpoint *backend)
{
	struct search search = {};

	if (!route || !backend)
		return 0;
	search.backend = *backend;
	search.set = route->set;
	search.high = route->count;
	bpf_loop(HALVINGS, halve, &search, 0);
	return search.found;
}

/* Where a client of a frontend with affinity was led before, if that still holds. */
static __always_inline int remembered(const struct frontend *frontend, const struct route *route,
				      const struct affinity_key *key, struct endpoint *backend)
{
	struct affinity *affinity = bpf_map_lookup_elem(&affinities, key);

	if (!affinity || bpf_ktime_get_ns() - affinity->last_ns > frontend->affinity_s * NS_PER_S)
		return 0;
	*backend = affinity->backend;
	return is_backend(route, backend);
}

/* A backend of a route for a client; 0: the route's set went away meanwhile. */
SEPARATE int choose_backend(const struct frontend *frontend, const struct route *route, __u64 client,
			    struct endpoint *backend)
{
	struct affinity_key key = { .client = client };

	if (!frontend || !route || !backend)
		return 0;
	key.service = frontend->service;
	if (!frontend->affinity_s || !remembered(frontend, route, &key, backend)) {
		struct endpoint *drawn = draw(route);

		if (!drawn)
			return 0;
		*backend = *drawn;
	}
	if (frontend->affinity_s) {
		struct affinity affinity = { .last_ns = bpf_ktime_get_ns(), .backend = *backend };

		bpf_map_update_elem(&affinities, &key, &affinity, BPF_ANY);
	}
	return 1;
}

#endif
