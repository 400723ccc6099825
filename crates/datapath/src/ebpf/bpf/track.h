/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What is remembered of flows whose packets are rewritten. A flow from a client C to a frontend F, led to a backend B, has
 * these entries; the last two only if its source becomes S:
 *
 *   INGRESS  C > F   destination B     its state stands here
 *   EGRESS   B > C   source F
 *   EGRESS   C > B   source S
 *   INGRESS  B > S   destination C
 *
 * So destinations are rewritten before the kernel routes, and sources after it, as netfilter does. Each entry ends by itself
 * when its time is over; packets of either way give all of them more.
 */
#ifndef SIGNPOST_TRACK_H
#define SIGNPOST_TRACK_H

#include "choose.h"

/* Seconds that a flow lasts without a packet. */
#define TCP_OPENING_S 60ULL
#define TCP_OPEN_S 86400ULL
#define TCP_HALF_ENDED_S 3600ULL
#define TCP_ENDED_S 10ULL
#define UDP_ONE_WAY_S 30ULL
#define UDP_BOTH_WAYS_S 180ULL
#define FRAGMENT_S 30ULL

MEMORY(tracked, struct tuple, struct tracked);
MEMORY(fragments, struct fragment_key, struct fragment);

/* Raised with each change of the tables. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} epoch SEC(".maps");

static __always_inline __u32 epoch_now(void)
{
	__u32 first = 0, *now = bpf_map_lookup_elem(&epoch, &first);

	return now ? *now : 0;
}

/* An entry whose time is not over. */
static __always_inline struct tracked *track(const struct tuple *tuple, __u64 now)
{
	struct tracked *entry = bpf_map_lookup_elem(&tracked, tuple);

	return entry && entry->expires_ns > now ? entry : 0;
}

static __always_inline __u64 lasts_s(__u8 protocol, __u32 flags)
{
	if (protocol == IPPROTO_UDP)
		return flags & REPLIED ? UDP_BOTH_WAYS_S : UDP_ONE_WAY_S;
	if (flags & RESET_SEEN || (flags & CLIENT_ENDED && flags & BACKEND_ENDED))
		return TCP_ENDED_S;
	if (flags & (CLIENT_ENDED | BACKEND_ENDED))
		return TCP_HALF_ENDED_S;
	return flags & REPLIED ? TCP_OPEN_S : TCP_OPENING_S;
}

static __always_inline struct tuple between(const struct address *source, __be16 source_port,
					    const struct address *destination, __be16 destination_port,
					    const struct tuple *like, enum at at)
{
	struct tuple tuple = {
		.source = *source,
		.destination = *destination,
		.source_port = source_port,
		.destination_port = destination_port,
		.protocol = like->protocol,
		.at = at,
	};

	return tuple;
}

static __always_inline void until(const struct tuple *tuple, __u64 expires_ns)
{
	struct tracked *entry = bpf_map_lookup_elem(&tracked, tuple);

	if (entry)
		entry->expires_ns = expires_ns;
}

/* Gives all entries of the flow of a FORWARD entry their time. */
SEPARATE int extend(const struct tuple *forward)
{
	struct tuple key;
	struct tracked *entry;
	struct endpoint backend;
	__u64 expires_ns;

	if (!forward)
		return 0;
	key = *forward;
	entry = bpf_map_lookup_elem(&tracked, &key);
	if (!entry)
		return 0;
	entry->touched_ns = bpf_ktime_get_ns();
	expires_ns = entry->touched_ns + lasts_s(forward->protocol, entry->flags) * NS_PER_S;
	entry->expires_ns = expires_ns;
	backend = entry->to;
	key = between(&backend.address, backend.port, &forward->source, forward->source_port, forward, EGRESS);
	until(&key, expires_ns);
	key = between(&forward->source, forward->source_port, &backend.address, backend.port, forward, EGRESS);
	entry = bpf_map_lookup_elem(&tracked, &key);
	if (!entry)
		return 0;
	entry->expires_ns = expires_ns;
	key = between(&backend.address, backend.port, &entry->to.address, entry->to.port, forward, INGRESS);
	until(&key, expires_ns);
	return 0;
}

#endif
