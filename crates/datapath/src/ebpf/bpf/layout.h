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
	__u8 action;
	__u8 masquerade;
	__u16 zero;
};

enum origin {
	FROM_POD = 0,
	FROM_NODE = 1,
	FROM_ELSEWHERE = 2,
};

enum frontend_flag {
	/* Only some sources may use it. */
	GUARDED = 1,
	/* Its TCP connections are ended when their endpoint is gone for longer than grace_s. The programs do not look. */
	RESET = 2,
};

struct frontend {
	struct route routes[3];
	/* The Service port, in one family: affinity and counters go by it. */
	__u64 service;
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

/* By family: 0 is IPv4, 1 is IPv6. */
struct node {
	/* Whether the cluster's pod ranges are known, so that a client in a network namespace of its own counts as a pod. */
	__u32 pods_known;
};

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
	/* The cookie of its network namespace: a pod has one. */
	__u64 client;
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

#endif
