/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Writes another address and port into a packet, and what its checksums become by that. */
#ifndef SIGNPOST_REWRITE_H
#define SIGNPOST_REWRITE_H

#include "packet.h"

#define L4_TCP_SUM 16
#define L4_UDP_SUM 6
#define ICMP_SUM 2
#define IPV4_SUM 10

/* Of <linux/bpf.h> since Linux 6.16: the sum of the whole packet stays, since IPv6 has none of its header. */
#define OF_IPV6 (1ULL << 7)

enum side {
	SOURCE,
	DESTINATION,
};

static __always_inline __u32 address_at(const struct packet *packet, __u32 l3, enum side side)
{
	if (packet->ipv4)
		return l3 + (side == SOURCE ? 12 : 16);
	return l3 + (side == SOURCE ? 8 : 24);
}

static __always_inline __u32 port_at(__u32 l4, enum side side)
{
	return l4 + (side == SOURCE ? 0 : 2);
}

/* Older kernels do not know the flag, and need it only where a network card summed the whole packet up. */
static __always_inline void sum_ipv6(struct __sk_buff *skb, __u32 sum_at, const struct address *from,
				     const struct address *to, __u64 flags)
{
	__s64 difference = bpf_csum_diff((__be32 *)from, sizeof(*from), (__be32 *)to, sizeof(*to), 0);

	if (bpf_l4_csum_replace(skb, sum_at, 0, difference, flags | OF_IPV6))
		bpf_l4_csum_replace(skb, sum_at, 0, difference, flags);
}

/* One side of a packet becomes an endpoint. */
SEPARATE int rewrite(struct __sk_buff *skb, const struct packet *packet, const struct endpoint *to, __u32 side)
{
	struct address from, address;
	__be16 port, port_from;
	__u32 sum_at, at;
	__u64 flags = 0;

	if (!packet || !to)
		return 0;
	from = side == SOURCE ? packet->tuple.source : packet->tuple.destination;
	port_from = side == SOURCE ? packet->tuple.source_port : packet->tuple.destination_port;
	address = to->address;
	port = to->port;
	at = address_at(packet, packet->l3, side);
	sum_at = packet->l4 + (packet->tuple.protocol == IPPROTO_TCP ? L4_TCP_SUM : L4_UDP_SUM);
	if (packet->tuple.protocol == IPPROTO_UDP)
		flags = BPF_F_MARK_MANGLED_0;
	if (packet->l4) {
		if (packet->ipv4)
			bpf_l4_csum_replace(skb, sum_at, from.word[3], address.word[3], flags | BPF_F_PSEUDO_HDR | 4);
		else
			sum_ipv6(skb, sum_at, &from, &address, flags | BPF_F_PSEUDO_HDR);
		bpf_l4_csum_replace(skb, sum_at, port_from, port, flags | 2);
		bpf_skb_store_bytes(skb, port_at(packet->l4, side), &port, sizeof(port), 0);
	}
	if (packet->ipv4) {
		bpf_l3_csum_replace(skb, packet->l3 + IPV4_SUM, from.word[3], address.word[3], 4);
		bpf_skb_store_bytes(skb, at, &address.word[3], 4, 0);
	} else {
		bpf_skb_store_bytes(skb, at, &address, sizeof(address), 0);
	}
	return 0;
}

/* The packet that an error tells of: the inner side, with the port. IPv4's header has a sum of its own, so the error's stays. */
static __always_inline void rewrite_inner(struct __sk_buff *skb, const struct packet *packet, const struct address *from,
					  __be16 port_from, const struct endpoint *to, enum side side)
{
	struct address address = to->address;
	__be16 port = to->port;
	__u32 at = address_at(packet, packet->inner_l3, side);

	if (packet->ipv4) {
		bpf_l3_csum_replace(skb, packet->inner_l3 + IPV4_SUM, from->word[3], address.word[3], 4);
		bpf_skb_store_bytes(skb, at, &address.word[3], 4, 0);
	} else {
		sum_ipv6(skb, packet->l4 + ICMP_SUM, from, &address, 0);
		bpf_skb_store_bytes(skb, at, &address, sizeof(address), 0);
	}
	bpf_l4_csum_replace(skb, packet->l4 + ICMP_SUM, port_from, port, 2);
	bpf_skb_store_bytes(skb, port_at(packet->inner_l4, side), &port, sizeof(port), 0);
}

/*
 * An ICMP error about a packet of a flow: its own address on `side` becomes the endpoint's, and within it the other side. Its
 * tuple is the other way of the packet within, so there the side is the same.
 */
SEPARATE int rewrite_error(struct __sk_buff *skb, const struct packet *packet, const struct endpoint *to, __u32 side)
{
	struct address from, address;
	__be16 port_from;
	__u32 at;

	if (!packet || !to)
		return 0;
	from = side == SOURCE ? packet->tuple.source : packet->tuple.destination;
	port_from = side == SOURCE ? packet->tuple.source_port : packet->tuple.destination_port;
	rewrite_inner(skb, packet, &from, port_from, to, side == SOURCE ? DESTINATION : SOURCE);
	address = to->address;
	at = address_at(packet, packet->l3, side);
	if (packet->ipv4) {
		if (bpf_skb_load_bytes(skb, at, &from.word[3], 4))
			return 0;
		bpf_l3_csum_replace(skb, packet->l3 + IPV4_SUM, from.word[3], address.word[3], 4);
		bpf_skb_store_bytes(skb, at, &address.word[3], 4, 0);
	} else {
		if (bpf_skb_load_bytes(skb, at, &from, sizeof(from)))
			return 0;
		sum_ipv6(skb, packet->l4 + ICMP_SUM, &from, &address, BPF_F_PSEUDO_HDR);
		bpf_skb_store_bytes(skb, at, &address, sizeof(address), 0);
	}
	return 0;
}

#endif
