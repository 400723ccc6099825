// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Service addresses rewritten at the socket, before there is a packet.
 *
 *   connect ─┐                                                    ┌─▶ the application's address is replaced by a
 *            ├─▶ find_frontend ─▶ route of this client ─▶ choose ─┤   backend's
 *   sendmsg ─┘                                                    └─▶ refused, or left to the packets' rules
 *   recvmsg, getpeername ─▶ peers ─▶ the application sees the address that it asked for
 *   bind ─▶ a node port is taken, in the node's own network
 *   sockops ─▶ counters: what became of connections that came through a frontend
 *
 * Who asks is told by the socket's network namespace: the node's own, or another, which is a pod's.
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "choose.h"
#include "counters.h"

/* How often a backend is drawn for a socket that has one of another frontend's at the same address. */
#define DRAWS 4

enum verdict {
	LEAVE,
	REWRITE,
	REFUSE,
	/* The frontend's backends went away between two lookups. */
	AGAIN,
};

struct client {
	__u64 cookie;
	__u64 netns;
	/* The same as affinity knows it. Here, once: each frame on the way down would need room for it, and stacks are short. */
	struct address network;
	int unconnected;
};

static __always_inline enum origin origin_of(const struct client *client, const struct address *to)
{
	__u32 family = !is_ipv4(to);
	struct node *node;

	if (client->netns == settings.node_netns)
		return FROM_NODE;
	node = bpf_map_lookup_elem(&nodes, &family);
	return node && node->pods_known ? FROM_POD : FROM_ELSEWHERE;
}

/* Where the socket's datagrams to a frontend went last, if that is still one of its backends. */
static __always_inline int known_flow(const struct route *route, const struct flow_key *key, struct endpoint *backend)
{
	struct endpoint *known = bpf_map_lookup_elem(&flows, key);

	if (!known)
		return 0;
	*backend = *known;
	return is_backend(route, backend);
}

/*
 * Notes which frontend a backend stands for. A socket that talks to two frontends of one backend could not tell the
 * answers of an unconnected socket apart: 0, if another frontend has it.
 */
SEPARATE int note_peer(const struct client *client, const struct endpoint *to, const struct endpoint *backend,
		       __u64 service)
{
	struct peer_key key = {};
	struct peer peer = {};

	if (!client || !to || !backend)
		return 0;
	key.cookie = client->cookie;
	key.backend = *backend;
	peer.frontend = *to;
	peer.service = service;
	if (client->unconnected) {
		struct peer *other = bpf_map_lookup_elem(&peers, &key);

		if (other && same_endpoint(&other->frontend, to))
			return 1;
		if (other)
			return 0;
	}
	bpf_map_update_elem(&peers, &key, &peer, BPF_ANY);
	return 1;
}

/* Copies, since Linux 6.1 takes keys and values from the stack alone. */
SEPARATE int note_flow(const struct flow_key *of, const struct endpoint *backend)
{
	struct endpoint flow;
	struct flow_key key;

	if (!of || !backend)
		return 0;
	key = *of;
	flow = *backend;
	return bpf_map_update_elem(&flows, &key, &flow, BPF_ANY);
}

/* A backend for the datagrams of an unconnected socket, which stays with it. */
SEPARATE int choose_flow(const struct client *client, const struct frontend *frontend, const struct route *route,
			 const struct endpoint *to, struct endpoint *backend)
{
	struct flow_key key = {};

	if (!client || !frontend || !route || !to || !backend)
		return LEAVE;
	key.cookie = client->cookie;
	key.frontend = *to;
	if (known_flow(route, &key, backend) && note_peer(client, to, backend, frontend->service))
		return REWRITE;
	UNROLLED
	for (int i = 0; i < DRAWS; i++) {
		if (!choose_backend(frontend, route, &client->network, 0, backend))
			return LEAVE;
		if (note_peer(client, to, backend, frontend->service)) {
			note_flow(&key, backend);
			count_connection(frontend->service, backend);
			return REWRITE;
		}
	}
	return LEAVE;
}

/* `AF_INET` of <sys/socket.h>, which programs of the kernel cannot include. */
#define AF_INET 2

/* What becomes of a destination; on REWRITE it is replaced. */
SEPARATE int attempt(const struct client *client, __u32 protocol, struct endpoint *to)
{
	struct endpoint backend = {};
	struct frontend *frontend;
	struct route route;
	enum origin origin;
	__u64 netns;

	if (!client || !to)
		return LEAVE;
	frontend = find_frontend(to, protocol);
	if (!frontend || frontend->flags & GUARDED)
		return LEAVE;
	netns = client->netns;
	if (bpf_map_lookup_elem(&left_out, &netns))
		return LEAVE;
	origin = origin_of(client, &to->address);
	route = frontend->routes[origin];
	if (route.action == REJECT) {
		count_refused(frontend->service);
		return REFUSE;
	}
	if (route.action != TO_BACKENDS || (route.masquerade && origin != FROM_NODE))
		return LEAVE;
	if (client->unconnected) {
		if (choose_flow(client, frontend, &route, to, &backend) != REWRITE)
			return slot(route.set, 0) ? LEAVE : AGAIN;
	} else {
		if (!choose_backend(frontend, &route, &client->network, 0, &backend))
			return AGAIN;
		note_peer(client, to, &backend, frontend->service);
		count_connection(frontend->service, &backend);
	}
	*to = backend;
	return REWRITE;
}

/* The same, up to four times if the backends go away under it. Not in a loop, see UNROLLED. */
static __always_inline int decide(const struct client *client, __u32 protocol, struct endpoint *to)
{
	int verdict;

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return LEAVE;
	verdict = attempt(client, protocol, to);
	if (verdict == AGAIN)
		verdict = attempt(client, protocol, to);
	if (verdict == AGAIN)
		verdict = attempt(client, protocol, to);
	if (verdict == AGAIN)
		verdict = attempt(client, protocol, to);
	return verdict;
}

static __always_inline struct client client_of(struct bpf_sock_addr *ctx, int unconnected)
{
	struct client client = {
		.cookie = bpf_get_socket_cookie(ctx),
		.netns = bpf_get_netns_cookie(ctx),
		.unconnected = unconnected,
	};

	client.network = of_network(client.netns);
	return client;
}

static __always_inline struct endpoint endpoint4(struct bpf_sock_addr *ctx)
{
	struct endpoint endpoint = {
		.address.word = { 0, 0, bpf_htonl(0xffff), ctx->user_ip4 },
		.port = ctx->user_port,
	};

	return endpoint;
}

static __always_inline struct endpoint endpoint6(struct bpf_sock_addr *ctx)
{
	struct endpoint endpoint = {
		.address.word = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] },
		.port = ctx->user_port,
	};

	return endpoint;
}

static __always_inline void write4(struct bpf_sock_addr *ctx, const struct endpoint *endpoint)
{
	ctx->user_ip4 = endpoint->address.word[3];
	ctx->user_port = endpoint->port;
}

static __always_inline void write6(struct bpf_sock_addr *ctx, const struct endpoint *endpoint)
{
	ctx->user_ip6[0] = endpoint->address.word[0];
	ctx->user_ip6[1] = endpoint->address.word[1];
	ctx->user_ip6[2] = endpoint->address.word[2];
	ctx->user_ip6[3] = endpoint->address.word[3];
	ctx->user_port = endpoint->port;
}

static __always_inline int refuse(int error)
{
	bpf_set_retval(error);
	return 0;
}

static __always_inline int send4(struct bpf_sock_addr *ctx, int unconnected)
{
	struct client client = client_of(ctx, unconnected);
	struct endpoint to = endpoint4(ctx);

	switch (decide(&client, ctx->protocol, &to)) {
	case REWRITE:
		write4(ctx, &to);
		return 1;
	case REFUSE:
		return refuse(-ECONNREFUSED);
	default:
		return 1;
	}
}

static __always_inline int send6(struct bpf_sock_addr *ctx, int unconnected)
{
	struct client client = client_of(ctx, unconnected);
	struct endpoint to = endpoint6(ctx);

	switch (decide(&client, ctx->protocol, &to)) {
	case REWRITE:
		write6(ctx, &to);
		return 1;
	case REFUSE:
		return refuse(-ECONNREFUSED);
	default:
		return 1;
	}
}

/* What the application asked for, where a backend answers. */
static __always_inline int asked_for(struct bpf_sock_addr *ctx, struct endpoint *from)
{
	struct peer_key key = { .cookie = bpf_get_socket_cookie(ctx), .backend = *from };
	struct peer *peer = bpf_map_lookup_elem(&peers, &key);

	if (!peer)
		return 0;
	*from = peer->frontend;
	return 1;
}

static __always_inline int receive4(struct bpf_sock_addr *ctx)
{
	struct endpoint from = endpoint4(ctx);

	if (asked_for(ctx, &from))
		write4(ctx, &from);
	return 1;
}

static __always_inline int receive6(struct bpf_sock_addr *ctx)
{
	struct endpoint from = endpoint6(ctx);

	if (asked_for(ctx, &from))
		write6(ctx, &from);
	return 1;
}

/* A process of the node that took a node port would hear nothing: what comes there is the Service's. */
static __always_inline int bind_to(struct bpf_sock_addr *ctx, struct endpoint *at)
{
	int everywhere = !at->address.word[0] && !at->address.word[1] && !at->address.word[3] &&
			 (!at->address.word[2] || is_ipv4(&at->address));
	struct frontend_key key = {
		.port = at->port,
		.protocol = ctx->protocol,
		.place = AT_NODE_PORT,
	};

	if (!at->port || bpf_get_netns_cookie(ctx) != settings.node_netns)
		return 1;
	if (!everywhere && !bpf_map_lookup_elem(&node_port_ips, &at->address))
		return 1;
	if (!is_ipv4(&at->address) && bpf_map_lookup_elem(&frontends, &key))
		return refuse(-EADDRINUSE);
	key.address.word[2] = bpf_htonl(0xffff);
	if ((everywhere || is_ipv4(&at->address)) && bpf_map_lookup_elem(&frontends, &key))
		return refuse(-EADDRINUSE);
	return 1;
}

static __always_inline struct peer_key peer_key_of(struct bpf_sock_ops *ctx)
{
	struct peer_key key = { .cookie = bpf_get_socket_cookie(ctx) };

	if (ctx->family == AF_INET) {
		__u32 address = ctx->remote_ip4;

		/* Else the compiler reads both families' through one computed pointer, which the verifier refuses. */
		asm volatile("" : "+r"(address));
		key.backend.address.word[2] = bpf_htonl(0xffff);
		key.backend.address.word[3] = address;
	} else {
		key.backend.address.word[0] = ctx->remote_ip6[0];
		key.backend.address.word[1] = ctx->remote_ip6[1];
		key.backend.address.word[2] = ctx->remote_ip6[2];
		key.backend.address.word[3] = ctx->remote_ip6[3];
	}
	key.backend.port = bpf_htons(bpf_ntohl(ctx->remote_port));
	return key;
}

/* A TCP connection that came through a frontend is over. */
static __always_inline void ended(struct bpf_sock_ops *ctx)
{
	struct peer_key key = peer_key_of(ctx);
	struct peer *peer = bpf_map_lookup_elem(&peers, &key);
	struct counter *counter = peer && settings.counting ? counter_of(peer->service, &key.backend) : 0;

	if (counter && ctx->args[0] == BPF_TCP_SYN_SENT) {
		add(&counter->unanswered, 1);
	} else if (counter) {
		add(&counter->sent_bytes, ctx->bytes_acked);
		add(&counter->received_bytes, ctx->bytes_received);
		if (settings.counting == COUNT_PACKETS) {
			add(&counter->sent_packets, ctx->segs_out);
			add(&counter->received_packets, ctx->segs_in);
		}
	}
	if (peer)
		bpf_map_delete_elem(&peers, &key);
}

SEC("sockops")
int connections(struct bpf_sock_ops *ctx)
{
	if (ctx->op == BPF_SOCK_OPS_TCP_CONNECT_CB) {
		struct peer_key key = peer_key_of(ctx);

		if (bpf_map_lookup_elem(&peers, &key))
			bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	} else if (ctx->op == BPF_SOCK_OPS_STATE_CB && ctx->args[1] == BPF_TCP_CLOSE) {
		ended(ctx);
	}
	return 1;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	return send4(ctx, 0);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	return send6(ctx, 0);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	return send4(ctx, 1);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	return send6(ctx, 1);
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	return receive4(ctx);
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	return receive6(ctx);
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	return receive4(ctx);
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	return receive6(ctx);
}

SEC("cgroup/bind4")
int bind4(struct bpf_sock_addr *ctx)
{
	struct endpoint at = endpoint4(ctx);

	return bind_to(ctx, &at);
}

SEC("cgroup/bind6")
int bind6(struct bpf_sock_addr *ctx)
{
	struct endpoint at = endpoint6(ctx);

	return bind_to(ctx, &at);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
