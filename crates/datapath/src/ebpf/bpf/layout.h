/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What stands in the maps: shared by the kernel programs, and said once more in layout.rs, whose tests hold sizes and
 * places. Whoever changes a structure or a map changes LAYOUT there: a daemon then makes new maps and moves over.
 *
 * Addresses are 16 bytes; an IPv4 address is ::ffff:a.b.c.d. Ports are in network order, everything else in the machine's.
 */
#ifndef SIGNPOST_LAYOUT_H
#define SIGNPOST_LAYOUT_H

#include <linux/types.h>

struct address {
	__u32 word[4];
};

/* An address and a port of some protocol. */
struct endpoint {
	struct address address;
	__be16 port;
	__u16 zero;
};

enum place {
	AT_ADDRESS = 0,
	/* The address is then ::ffff:0.0.0.0 or ::, for the family. */
	AT_NODE_PORT = 1,
};

struct frontend_key {
	struct address address;
	__be16 port;
	__u8 protocol;
	__u8 place;
};

enum action {
	REJECT = 0,
	DROP = 1,
	TO_BACKENDS = 2,
};

struct route {
	/* Backends of a set are its slots 0 to count - 1, sorted by address and port. A set never changes: what is new is
	 * another set. */
	__u64 set;
	__u32 count;
	/* How many entries the set's Maglev table has; 0: it has none, and backends are drawn. */
	__u32 table;
	__u8 action;
	__u8 masquerade;
	__u16 zero;
	__u32 zero_too;
};

enum origin {
	FROM_POD = 0,
	FROM_NODE = 1,
	FROM_ELSEWHERE = 2,
};

enum frontend_flag {
	/* Only some sources may use it: those of its guard. */
	GUARDED = 1,
	/* Its TCP connections are ended when their endpoint is gone for longer than grace_s. The programs do not look. */
	RESET = 2,
};

struct frontend {
	struct route routes[3];
	/* The Service port, in one family: affinity and counters go by it. */
	__u64 service;
	/* Which of `sources` may use it. */
	__u64 guard;
	/* Affinity of a client; 0: none. */
	__u32 affinity_s;
	__u32 flags;
	__u32 grace_s;
	/* Whether its TCP connections are spread anew after a scale-up: bound and rate, see layout.rs. The programs do not look. */
	__u32 rebalance;
};

struct slot_key {
	__u64 set;
	__u32 index;
	__u32 zero;
};

/* Indices of slots: of each set with a table, its entries one after the other. Its key is a slot_key whose index counts such chunks. */
#define CHUNK 128

struct chunk {
	__u16 slot[CHUNK];
};

/* By family: 0 is IPv4, 1 is IPv6. */
struct node {
	/* Whether the cluster's pod ranges are known, so that a client in a network namespace of its own counts as a pod. */
	__u32 pods_known;
	/* The source of packets that are masqueraded; all zero: there is none. */
	struct address masquerade;
};

/* A range of addresses. IPv4's prefixes are 96 longer than they are written. */
struct range_key {
	__u32 prefix;
	struct address address;
} __attribute__((packed));

/* A range of the sources that a guard lets in; `prefix` counts the 64 bits of `guard` too. */
struct source_key {
	__u32 prefix;
	__u64 guard;
	struct address address;
} __attribute__((packed));

/* Where a socket's peer came from: which backend stands for which frontend. */
struct peer_key {
	__u64 cookie;
	struct endpoint backend;
	__u32 zero;
};

struct peer {
	struct endpoint frontend;
	__u32 zero;
	__u64 service;
};

/* Where an unconnected socket's datagrams to a frontend go. */
struct flow_key {
	__u64 cookie;
	struct endpoint frontend;
	__u32 zero;
};

/* Where a client was led, and when: its affinity. */
struct affinity_key {
	__u64 service;
	/* Its address; of a socket, what `of_network` makes of the cookie of its network namespace: a pod has one. */
	struct address client;
};

/* What became of connections. */
struct counter_key {
	__u64 service;
	struct endpoint backend;
	__u32 zero;
};

struct counter {
	/* That began. */
	__u64 connections;
	/* For want of an endpoint. */
	__u64 refused;
	/* Whose backend refused them or never answered; TCP alone. */
	__u64 unanswered;
	/* What ended connections had moved; TCP alone. */
	__u64 sent_bytes;
	__u64 received_bytes;
	/* The same in segments, where that is asked for. */
	__u64 sent_packets;
	__u64 received_packets;
};

enum counting {
	COUNT_NOTHING = 0,
	COUNT_CONNECTIONS = 1,
	COUNT_PACKETS = 2,
};

/* What the daemon fills in before it loads the programs. */
struct settings {
	/* The cookie of the node's network namespace. */
	__u64 node_netns;
	/* enum counting */
	__u32 counting;
	__u32 zero;
};

struct affinity {
	__u64 last_ns;
	struct endpoint backend;
	__u32 zero;
};

/* Which way a packet crosses an interface. */
enum at {
	/* Into the node: its destination may be rewritten. */
	INGRESS = 0,
	/* Out of the node: its source may be rewritten. */
	EGRESS = 1,
};

/* A packet of a flow, as one of the two programs sees it. */
struct tuple {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol;
	__u8 at;
	__u16 zero;
};

enum tracked_flag {
	/* From the client, to a frontend: the entry that knows its flow's state. */
	FORWARD = 1,
	REPLIED = 2,
	CLIENT_ENDED = 4,
	BACKEND_ENDED = 8,
	RESET_SEEN = 16,
	/* From the client, on its way out: the flow's state stands elsewhere. */
	MASQUERADED = 32,
};

/* What such a packet's destination (INGRESS) or source (EGRESS) becomes. */
struct tracked {
	struct endpoint to;
	__u32 flags;
	__u64 expires_ns;
	/* When its flow's entries were last given more time. */
	__u64 touched_ns;
	/* Of FORWARD, UDP: the state of the maps under which `to` was a backend. */
	__u32 epoch;
	__u32 zero;
};

/* Ports of a fragmented packet, from its first fragment. */
struct fragment_key {
	struct address source;
	struct address destination;
	__u32 id;
	__u8 protocol;
	__u8 at;
	__u16 zero;
};

struct fragment {
	__be16 source_port;
	__be16 destination_port;
	__u32 zero;
	__u64 expires_ns;
};

#endif
