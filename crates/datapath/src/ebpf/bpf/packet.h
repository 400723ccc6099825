/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Reads a packet: its tuple, and where its headers are. */
#ifndef SIGNPOST_PACKET_H
#define SIGNPOST_PACKET_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>

#include "track.h"

/* Of <netinet/icmp6.h> and <linux/in6.h>, which programs of the kernel cannot include all of. */
#define PROTOCOL_FRAGMENT 44
#define PROTOCOL_ICMP6 58

#define FLAG_FIN 0x01
#define FLAG_SYN 0x02
#define FLAG_RST 0x04

struct packet {
	/* Of an ICMP error: the other way of the packet that it tells of, so that both have one flow. */
	struct tuple tuple;
	__u32 l3;
	/* 0: a later fragment, which has none. */
	__u32 l4;
	/* Of an ICMP error: where the packet that it tells of begins; else 0. */
	__u32 inner_l3;
	__u32 inner_l4;
	__u32 fragment_id;
	/* Whether it is a first fragment, or a later one. */
	__u8 first;
	__u8 later;
	__u8 ipv4;
	/* Of TCP. */
	__u8 flags;
};

/* Reads an IPv4 header; gives where the next one is, or 0. */
static __always_inline __u32 read_ipv4(struct __sk_buff *skb, __u32 at, struct packet *packet)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
		return 0;
	packet->tuple.source.word[2] = bpf_htonl(0xffff);
	packet->tuple.source.word[3] = ip.saddr;
	packet->tuple.destination.word[2] = bpf_htonl(0xffff);
	packet->tuple.destination.word[3] = ip.daddr;
	packet->tuple.protocol = ip.protocol;
	packet->fragment_id = ip.id;
	packet->later = (ip.frag_off & bpf_htons(0x1fff)) != 0;
	packet->first = !packet->later && (ip.frag_off & bpf_htons(0x2000));
	return at + ip.ihl * 4;
}

/* Reads an IPv6 header, and that of a fragment; packets with other extension headers are nobody's. */
static __always_inline __u32 read_ipv6(struct __sk_buff *skb, __u32 at, struct packet *packet)
{
	struct {
		__u8 next;
		__u8 zero;
		__be16 offset;
		__be32 id;
	} fragment;

	if (bpf_skb_load_bytes(skb, at + 8, &packet->tuple.source, 2 * sizeof(struct address)) ||
	    bpf_skb_load_bytes(skb, at + 6, &packet->tuple.protocol, 1))
		return 0;
	at += sizeof(struct ipv6hdr);
	if (packet->tuple.protocol != PROTOCOL_FRAGMENT)
		return at;
	if (bpf_skb_load_bytes(skb, at, &fragment, sizeof(fragment)))
		return 0;
	packet->tuple.protocol = fragment.next;
	packet->fragment_id = fragment.id;
	packet->later = (fragment.offset & bpf_htons(0xfff8)) != 0;
	packet->first = !packet->later && (fragment.offset & bpf_htons(1));
	return at + sizeof(fragment);
}

static __always_inline __u32 read_ip(struct __sk_buff *skb, __u32 at, struct packet *packet)
{
	return packet->ipv4 ? read_ipv4(skb, at, packet) : read_ipv6(skb, at, packet);
}

/* Whether an ICMP message tells of another packet. */
static __always_inline int tells_of_packet(const struct packet *packet, __u8 type)
{
	if (packet->ipv4)
		return type == 3 || type == 11 || type == 12;
	return type >= 1 && type <= 4;
}

static __always_inline void turn(struct tuple *tuple)
{
	struct address address = tuple->source;
	__be16 port = tuple->source_port;

	tuple->source = tuple->destination;
	tuple->destination = address;
	tuple->source_port = tuple->destination_port;
	tuple->destination_port = port;
}

static __always_inline int is_ours(const struct tuple *tuple)
{
	return tuple->protocol == IPPROTO_TCP || tuple->protocol == IPPROTO_UDP;
}

/* Both protocols begin with their ports. */
static __always_inline int read_ports(struct __sk_buff *skb, __u32 at, struct packet *packet)
{
	return is_ours(&packet->tuple) && !bpf_skb_load_bytes(skb, at, &packet->tuple.source_port, 4);
}

static __always_inline int read_error(struct __sk_buff *skb, struct packet *packet)
{
	__u8 type;

	if (packet->first || packet->later || bpf_skb_load_bytes(skb, packet->l4, &type, 1) ||
	    !tells_of_packet(packet, type))
		return 0;
	packet->inner_l3 = packet->l4 + 8;
	packet->inner_l4 = read_ip(skb, packet->inner_l3, packet);
	if (!packet->inner_l4 || packet->later || !read_ports(skb, packet->inner_l4, packet))
		return 0;
	packet->first = 0;
	turn(&packet->tuple);
	return 1;
}

/* Ports of a later fragment are those of the first one, if that came before. */
static __always_inline int read_fragment(struct packet *packet)
{
	struct fragment_key key = {
		.source = packet->tuple.source,
		.destination = packet->tuple.destination,
		.id = packet->fragment_id,
		.protocol = packet->tuple.protocol,
		.at = packet->tuple.at,
	};
	struct fragment *known;

	if (packet->first) {
		struct fragment fragment = {
			.source_port = packet->tuple.source_port,
			.destination_port = packet->tuple.destination_port,
			.expires_ns = bpf_ktime_get_ns() + FRAGMENT_S * NS_PER_S,
		};

		bpf_map_update_elem(&fragments, &key, &fragment, BPF_ANY);
		return 1;
	}
	known = bpf_map_lookup_elem(&fragments, &key);
	if (!known || known->expires_ns < bpf_ktime_get_ns())
		return 0;
	packet->tuple.source_port = known->source_port;
	packet->tuple.destination_port = known->destination_port;
	return 1;
}

/* Whether it is a packet that may have a flow. */
SEPARATE int read_packet(struct __sk_buff *skb, __u32 l3, __u32 at, struct packet *packet)
{
	if (!packet)
		return 0;
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return 0;
	packet->ipv4 = skb->protocol == bpf_htons(ETH_P_IP);
	packet->l3 = l3;
	packet->tuple.at = at;
	packet->l4 = read_ip(skb, l3, packet);
	if (!packet->l4)
		return 0;
	if (packet->tuple.protocol == (packet->ipv4 ? IPPROTO_ICMP : PROTOCOL_ICMP6))
		return read_error(skb, packet);
	if (packet->later) {
		packet->l4 = 0;
		return is_ours(&packet->tuple) && read_fragment(packet);
	}
	if (!read_ports(skb, packet->l4, packet))
		return 0;
	if (packet->tuple.protocol == IPPROTO_TCP && bpf_skb_load_bytes(skb, packet->l4 + 13, &packet->flags, 1))
		return 0;
	return !packet->first || read_fragment(packet);
}

#endif
