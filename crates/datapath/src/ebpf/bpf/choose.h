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

/* The slot that the set's Maglev table has for a flow: the same on every node. */
static __always_inline struct endpoint *in_table(const struct route *route, __u64 flow)
{
	__u32 entry = flow % route->table;
	struct slot_key key = { .set = route->set, .index = entry / CHUNK };
	struct chunk *chunk = bpf_map_lookup_elem(&tables, &key);

	return chunk ? slot(route->set, chunk->slot[entry % CHUNK]) : 0;
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

/* Where a client of a frontend with affinity was led before. This and the next one stand by themselves, so that their stack is not
 * below that of the search: all of it has to fit into 512 bytes, on Linux 6.1 in steps of 32. */
SEPARATE int recall_client(const struct frontend *frontend, const struct address *client, struct endpoint *backend)
{
	struct affinity_key key = {};
	struct affinity *affinity;

	if (!frontend || !client || !backend)
		return 0;
	key.service = frontend->service;
	key.client = *client;
	affinity = bpf_map_lookup_elem(&affinities, &key);
	if (!affinity || bpf_ktime_get_ns() - affinity->last_ns > frontend->affinity_s * NS_PER_S)
		return 0;
	*backend = affinity->backend;
	return 1;
}

/* How affinity knows a client by its network namespace: an address that nobody has. */
static __always_inline struct address of_network(__u64 cookie)
{
	struct address client = { .word = { 0, 0xffffffff, cookie >> 32, cookie } };

	return client;
}

/* From now on a client is led to a backend. */
SEPARATE int bind_client(const struct frontend *frontend, const struct address *client, const struct endpoint *backend)
{
	struct affinity affinity = {};
	struct affinity_key key = {};

	if (!frontend || !client || !backend)
		return 0;
	key.service = frontend->service;
	key.client = *client;
	affinity.last_ns = bpf_ktime_get_ns();
	affinity.backend = *backend;
	return bpf_map_update_elem(&affinities, &key, &affinity, BPF_ANY);
}

/* A backend of a route for a client; 0: the route's set went away meanwhile. `flow` is a hash of a packet's flow; 0: a socket's. */
SEPARATE int choose_backend(const struct frontend *frontend, const struct route *route, const struct address *client,
			    __u64 flow, struct endpoint *backend)
{
	if (!frontend || !route || !client || !backend)
		return 0;
	if (!frontend->affinity_s || !recall_client(frontend, client, backend) || !is_backend(route, backend)) {
		struct endpoint *drawn = flow && route->table ? in_table(route, flow) : draw(route);

		if (!drawn)
			return 0;
		*backend = *drawn;
	}
	if (frontend->affinity_s)
		bind_client(frontend, client, backend);
	return 1;
}

#endif
