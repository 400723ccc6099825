// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Service addresses rewritten in packets, where they cross an interface of the node.
 *
 *   ingress ─▶ a flow that is known? ─▶ its destination            (track.h)
 *              else a frontend? ─▶ route of this source ─▶ choose ─▶ a new flow, its destination
 *   egress  ─▶ a flow that is known? ─▶ its source
 *
 * What is refused, and what no program here reads (other protocols, extension headers), is left to the rules.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "counters.h"
#include "packet.h"
#include "rewrite.h"

/* So many ports are tried for a source. */
#define PORTS_TRIED 128
/* How many backends are tried for a client that has another flow to the first one by the same ports. */
#define CHOICES 8
/* A flow's entries are given more time this often at most. */
#define TOUCH_NS NS_PER_S

/* The ports of masqueraded sources. The daemon fills them in before it loads. */
const volatile __u32 first_port = 49152;
const volatile __u32 last_port = 65535;

/* To the next program, or on its way. */
#define PASS TC_ACT_UNSPEC

static __always_inline enum origin origin_of(const struct tuple *tuple)
{
	struct range_key range = { .prefix = 128, .address = tuple->source };
	struct address source = tuple->source;

	if (bpf_map_lookup_elem(&pod_networks, &range))
		return FROM_POD;
	return bpf_map_lookup_elem(&node_ips, &source) ? FROM_NODE : FROM_ELSEWHERE;
}

static __always_inline int may_use(const struct frontend *frontend, const struct tuple *tuple)
{
	struct source_key key = { .prefix = 192, .guard = frontend->guard, .address = tuple->source };

	return !(frontend->flags & GUARDED) || bpf_map_lookup_elem(&sources, &key);
}

/* The same on every node, and in maglev.rs. */
static __always_inline __u64 mixed(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
	return hash ^ (hash >> 32);
}

/* A node port's address is the node's: it does not count. */
static __always_inline __u64 flow_hash(const struct tuple *tuple, __u64 service)
{
	__u64 hash = service;

	for (int i = 0; i < 4; i++)
		hash = mixed(hash, bpf_ntohl(tuple->source.word[i]));
	hash = mixed(hash, ((__u64)bpf_ntohs(tuple->source_port) << 8) | tuple->protocol);
	return hash ? hash : 1;
}

struct port_search {
	/* Of the backend's answer; its destination is looked for. */
	struct tuple reply;
	struct tracked entry;
	__u64 now;
	__u32 start;
	__u32 found;
};

/* Works on the search itself, for want of stack. */
static long try_port(__u32 step, struct port_search *search)
{
	__u32 port = first_port + (search->start + step) % (last_port - first_port + 1);
	struct tracked *other;

	search->reply.destination_port = bpf_htons(port);
	other = bpf_map_lookup_elem(&tracked, &search->reply);
	if (other && other->expires_ns > search->now)
		return 0;
	if (other)
		bpf_map_delete_elem(&tracked, &search->reply);
	search->found = !bpf_map_update_elem(&tracked, &search->reply, &search->entry, BPF_NOEXIST);
	return search->found;
}

/* Finds a source for a flow to a backend, and remembers both ways of it. */
SEPARATE int masquerade(const struct tuple *forward, const struct endpoint *backend)
{
	struct port_search search = {};
	struct node *node;
	__u32 family;

	if (!forward || !backend)
		return 0;
	family = !is_ipv4(&backend->address);
	node = bpf_map_lookup_elem(&nodes, &family);
	if (!node || (!node->masquerade.word[2] && !node->masquerade.word[3]))
		return 0;
	search.now = bpf_ktime_get_ns();
	search.start = bpf_get_prandom_u32();
	search.reply = between(&backend->address, backend->port, &node->masquerade, 0, forward, INGRESS);
	search.entry.to.address = forward->source;
	search.entry.to.port = forward->source_port;
	search.entry.expires_ns = search.now + lasts_s(forward->protocol, 0) * NS_PER_S;
	bpf_loop(PORTS_TRIED, try_port, &search, 0);
	if (!search.found)
		return 0;
	search.entry.to.address = search.reply.destination;
	search.entry.to.port = search.reply.destination_port;
	search.entry.flags = MASQUERADED;
	search.reply = between(&forward->source, forward->source_port, &backend->address, backend->port, forward, EGRESS);
	return !bpf_map_update_elem(&tracked, &search.reply, &search.entry, BPF_ANY);
}

/* Whether the client's ports have no flow to this backend by another frontend: its answers could not be told apart. */
static __always_inline int is_free(const struct tuple *forward, const struct endpoint *backend)
{
	struct tuple key = between(&backend->address, backend->port, &forward->source, forward->source_port, forward, EGRESS);
	struct tracked *entry = track(&key, bpf_ktime_get_ns());

	return !entry || (same_address(&entry->to.address, &forward->destination) &&
			  entry->to.port == forward->destination_port);
}

/* Remembers a flow. */
SEPARATE int remember(const struct tuple *forward, const struct endpoint *backend)
{
	struct tracked entry = {};
	struct tuple key;

	if (!forward || !backend)
		return 0;
	entry.touched_ns = bpf_ktime_get_ns();
	entry.expires_ns = entry.touched_ns + lasts_s(forward->protocol, 0) * NS_PER_S;
	key = between(&backend->address, backend->port, &forward->source, forward->source_port, forward, EGRESS);
	entry.to.address = forward->destination;
	entry.to.port = forward->destination_port;
	if (bpf_map_update_elem(&tracked, &key, &entry, BPF_ANY))
		return 0;
	key = *forward;
	entry.to = *backend;
	entry.flags = FORWARD;
	entry.epoch = epoch_now();
	return !bpf_map_update_elem(&tracked, &key, &entry, BPF_ANY);
}

/* What an ended flow of the same ports may have left. */
SEPARATE int forget_source(const struct tuple *forward, const struct endpoint *backend)
{
	struct tuple key;

	if (!forward || !backend)
		return 0;
	key = between(&forward->source, forward->source_port, &backend->address, backend->port, forward, EGRESS);
	return bpf_map_delete_elem(&tracked, &key);
}

static __always_inline int is_hairpin(const struct tuple *forward, const struct endpoint *backend)
{
	struct address source = forward->source;

	return same_address(&source, &backend->address) && bpf_map_lookup_elem(&local_endpoints, &source);
}

/* A backend for a new flow; 0: there is none any more, and the frontend is to be looked up again. */
SEPARATE int choose_for(const struct frontend *frontend, const struct route *route, const struct tuple *forward,
			struct endpoint *backend)
{
	__u64 hash;

	if (!frontend || !route || !forward || !backend)
		return 0;
	hash = flow_hash(forward, frontend->service);
	if (!choose_backend(frontend, route, &forward->source, hash, backend))
		return 0;
	UNROLLED
	for (__u32 i = 1; i < CHOICES && !is_free(forward, backend) && route->count > 1; i++) {
		struct endpoint *other = slot(route->set, (hash + i) % route->count);

		if (!other)
			return 0;
		*backend = *other;
	}
	return 1;
}

/* The first packet of a flow, as far as is known; AGAIN: a set went away under the look. */
#define AGAIN 77

SEPARATE int begin(struct __sk_buff *skb, const struct packet *packet)
{
	struct endpoint to, backend = {};
	struct frontend *frontend;
	struct route route;
	struct tuple forward;

	if (!packet)
		return PASS;
	forward = packet->tuple;
	to.address = forward.destination;
	to.port = forward.destination_port;
	to.zero = 0;
	frontend = find_frontend(&to, forward.protocol);
	if (!frontend)
		return PASS;
	if (!may_use(frontend, &forward))
		return TC_ACT_SHOT;
	route = frontend->routes[origin_of(&forward)];
	if (route.action == DROP)
		return TC_ACT_SHOT;
	if (route.action != TO_BACKENDS)
		return PASS;
	if (!choose_for(frontend, &route, &forward, &backend))
		return AGAIN;
	if (route.masquerade || is_hairpin(&forward, &backend)) {
		if (!masquerade(&forward, &backend))
			return TC_ACT_SHOT;
	} else {
		forget_source(&forward, &backend);
	}
	if (!remember(&forward, &backend))
		return TC_ACT_SHOT;
	count_connection(frontend->service, &backend);
	rewrite(skb, packet, &backend, DESTINATION);
	return PASS;
}

/* Whether the backend of a UDP flow is still one; TCP's flows stay, whatever becomes of theirs. */
SEPARATE int still_leads(const struct tuple *forward, const struct endpoint *backend)
{
	struct frontend *frontend;
	struct route route;
	struct endpoint to;

	if (!forward || !backend)
		return 0;
	to.address = forward->destination;
	to.port = forward->destination_port;
	to.zero = 0;
	frontend = find_frontend(&to, forward->protocol);
	if (!frontend)
		return 0;
	route = frontend->routes[origin_of(forward)];
	return route.action == TO_BACKENDS && is_backend(&route, backend);
}

/* Takes note of a packet from the client. 0: the flow is none any more. */
static __always_inline int note_client(const struct packet *packet, struct tracked *entry, __u64 now)
{
	struct tuple forward = packet->tuple;
	__u32 before = entry->flags, flags = before, epoch = epoch_now();

	if (forward.protocol == IPPROTO_UDP && entry->epoch != epoch) {
		struct endpoint backend = entry->to;

		if (!still_leads(&forward, &backend))
			return 0;
		entry->epoch = epoch;
	}
	if (packet->flags & FLAG_SYN && flags & (CLIENT_ENDED | BACKEND_ENDED | RESET_SEEN))
		return 0;
	if (packet->flags & FLAG_FIN)
		flags |= CLIENT_ENDED;
	if (packet->flags & FLAG_RST)
		flags |= RESET_SEEN;
	entry->flags = flags;
	if (flags != before || now - entry->touched_ns > TOUCH_NS)
		extend(&forward);
	return 1;
}

/* Takes note of a packet from the backend; `entry` is that of the flow's other way. */
static __always_inline void note_backend(const struct packet *packet, struct tracked *entry, __u64 now)
{
	struct tuple forward = between(&packet->tuple.destination, packet->tuple.destination_port, &entry->to.address,
				       entry->to.port, &packet->tuple, INGRESS);
	struct tracked *known;
	__u32 flags, before;

	if (entry->flags & REPLIED && !(packet->flags & (FLAG_FIN | FLAG_RST)) && now - entry->touched_ns < TOUCH_NS)
		return;
	known = bpf_map_lookup_elem(&tracked, &forward);
	if (!known)
		return;
	before = known->flags;
	flags = before | REPLIED;
	if (packet->flags & FLAG_FIN)
		flags |= BACKEND_ENDED;
	if (packet->flags & FLAG_RST)
		flags |= RESET_SEEN;
	known->flags = flags;
	entry->flags |= REPLIED;
	entry->touched_ns = now;
	extend(&forward);
}

static __always_inline int incoming(struct __sk_buff *skb, __u32 l3)
{
	struct packet packet = {};
	struct tracked *entry;
	__u64 now = bpf_ktime_get_ns();
	struct endpoint to;
	int verdict;

	if (!read_packet(skb, l3, INGRESS, &packet))
		return PASS;
	entry = track(&packet.tuple, now);
	if (packet.inner_l3) {
		if (entry) {
			to = entry->to;
			rewrite_error(skb, &packet, &to, DESTINATION);
		}
		return PASS;
	}
	if (entry && (!(entry->flags & FORWARD) || note_client(&packet, entry, now))) {
		to = entry->to;
		rewrite(skb, &packet, &to, DESTINATION);
		return PASS;
	}
	verdict = begin(skb, &packet);
	if (verdict == AGAIN)
		verdict = begin(skb, &packet);
	if (verdict == AGAIN)
		verdict = begin(skb, &packet);
	return verdict == AGAIN ? TC_ACT_SHOT : verdict;
}

static __always_inline int outgoing(struct __sk_buff *skb, __u32 l3)
{
	struct packet packet = {};
	struct tracked *entry;
	__u64 now = bpf_ktime_get_ns();
	struct endpoint to;

	if (!read_packet(skb, l3, EGRESS, &packet))
		return PASS;
	entry = track(&packet.tuple, now);
	if (!entry)
		return PASS;
	to = entry->to;
	if (packet.inner_l3) {
		rewrite_error(skb, &packet, &to, SOURCE);
		return PASS;
	}
	if (!(entry->flags & MASQUERADED))
		note_backend(&packet, entry, now);
	rewrite(skb, &packet, &to, SOURCE);
	return PASS;
}

/* Interfaces with an Ethernet header. */
SEC("classifier")
int ingress(struct __sk_buff *skb)
{
	return incoming(skb, sizeof(struct ethhdr));
}

SEC("classifier")
int egress(struct __sk_buff *skb)
{
	return outgoing(skb, sizeof(struct ethhdr));
}

/* And those without: tunnels. */
SEC("classifier")
int ingress_bare(struct __sk_buff *skb)
{
	return incoming(skb, 0);
}

SEC("classifier")
int egress_bare(struct __sk_buff *skb)
{
	return outgoing(skb, 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
