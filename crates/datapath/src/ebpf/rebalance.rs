//! Pure. Which long-lived connections are closed after a scale-up, so that their clients connect anew and reach the new backends.
//!
//! ```text
//! a change of frontends ─▶ is_scaled_up ─▶ Episode ─┬▶ every second: groups of connections ─▶ look ─▶ those to close
//!                                                   └▶ nothing to close for a while ─▶ is_over
//! ```
//!
//! The connections of a Service port on this node that lead to one set of backends are a group. A backend's even share of a group is
//! the group's connections by its backends; a backend that has more than that and the bound is over it, by so many. Only as many as a
//! backend is over are closed, and it keeps what the bound lets it have, whether or not clients come back: a group counts for as large
//! as it ever was. In a second at most a share of all is closed, where that is less than one connection, one in the time that
//! makes it one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use signpost_core::object::Rebalance;

use super::layout::{FrontendValue, RouteValue, SetId};
use super::walk::{Maps, backends};

/// A connection that was seen this long lives long.
const LONG_LIVED: Duration = Duration::from_secs(5);
/// With nothing to close for so long, a Service port is balanced, or cannot be.
const QUIET: Duration = Duration::from_secs(30);
/// Between two looks.
pub const PACE: Duration = Duration::from_secs(1);

/// A connection, by its socket's cookie and where it leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connection {
    /// The number by which the kernel knows its socket.
    pub cookie: u64,
    /// Where it leads.
    pub backend: SocketAddr,
}

/// Connections that lead to a set of backends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// Those that a new connection may be led to.
    pub backends: BTreeSet<SocketAddr>,
    /// Those that are there; of others than the backends none counts.
    pub connections: BTreeSet<Connection>,
}

/// What follows a scale-up of a Service port.
#[derive(Debug, Clone)]
pub struct Episode {
    wish: Rebalance,
    /// Since when connections were seen.
    seen: BTreeMap<Connection, Instant>,
    /// The most connections that each group had.
    most: BTreeMap<SetId, usize>,
    /// Nothing is closed before.
    not_before: Instant,
    /// When something was last to be closed.
    busy_at: Instant,
    closed: u64,
}

impl Episode {
    /// Begins now.
    pub fn new(wish: Rebalance, now: Instant) -> Episode {
        let (seen, most) = (BTreeMap::new(), BTreeMap::new());
        Episode { wish, seen, most, not_before: now, busy_at: now, closed: 0 }
    }

    /// A further scale-up. What was closed so far counts for the rate.
    pub fn go_on(&mut self, wish: Rebalance, now: Instant) {
        self.wish = wish;
        self.busy_at = now;
    }

    /// The wish.
    pub fn wish(&self) -> Rebalance {
        self.wish
    }

    /// How many connections were closed.
    pub fn total(&self) -> u64 {
        self.closed
    }

    /// Whether there was nothing to close for a while.
    pub fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.busy_at) >= QUIET
    }

    /// Looks at all connections of the Service port; gives those to close now.
    pub fn look(&mut self, groups: &BTreeMap<SetId, Group>, now: Instant) -> Vec<Connection> {
        let before = std::mem::take(&mut self.seen);
        let mut candidates = Vec::new();
        for (set, group) in groups {
            let connections =
                group.connections.iter().filter(|connection| group.backends.contains(&connection.backend));
            let mut by_backend: BTreeMap<SocketAddr, Vec<(Instant, Connection)>> = BTreeMap::new();
            for connection in connections {
                let since = before.get(connection).copied().unwrap_or(now);
                self.seen.insert(*connection, since);
                by_backend.entry(connection.backend).or_default().push((since, *connection));
            }
            let count: usize = by_backend.values().map(Vec::len).sum();
            let most = self.most.entry(*set).or_default();
            *most = count.max(*most);
            let bound = bound(*most, group.backends.len(), self.wish.within_percent);
            for mut of_backend in by_backend.into_values() {
                let over = of_backend.len().saturating_sub(bound);
                of_backend.sort();
                let is_long_lived =
                    |(since, _): &(Instant, Connection)| now.saturating_duration_since(*since) >= LONG_LIVED;
                let oldest = of_backend.into_iter().filter(is_long_lived).take(over).enumerate();
                candidates.extend(oldest.map(|(at, (_, connection))| (over - at, connection)));
            }
        }
        self.most.retain(|set, _| groups.contains_key(set));
        if !candidates.is_empty() {
            self.busy_at = now;
        }
        if now < self.not_before {
            return Vec::new();
        }
        // First of the backend that has most over.
        candidates.sort_by_key(|(over, connection)| (std::cmp::Reverse(*over), *connection));
        candidates.into_iter().take(self.at_once()).map(|(_, connection)| connection).collect()
    }

    /// So many of those were closed, at the latest now.
    pub fn closed(&mut self, count: usize, now: Instant) {
        self.closed += count as u64;
        let hundredths = self.hundredths_per_s().max(1);
        let wait_ms = (count as u64).saturating_mul(100_000).div_ceil(hundredths);
        if count > 0 {
            self.not_before = now + PACE.max(Duration::from_millis(wait_ms));
        }
    }

    /// How many hundredths of a connection the rate is in a second.
    fn hundredths_per_s(&self) -> u64 {
        let all: usize = self.most.values().sum();
        all as u64 * u64::from(self.wish.rate_percent)
    }

    fn at_once(&self) -> usize {
        usize::try_from(self.hundredths_per_s() / 100).unwrap_or(usize::MAX).max(1)
    }
}

/// The most connections of so many that one of so many backends may have.
fn bound(connections: usize, backends: usize, within_percent: u16) -> usize {
    let share = connections as u64 * (100 + u64::from(within_percent));
    usize::try_from(share.div_ceil(100 * backends.max(1) as u64)).unwrap_or(usize::MAX)
}

/// Whether a frontend has backends that it had not, beside such as it had, or begins to ask that it be balanced. One that is
/// new has no connections yet.
pub fn is_scaled_up(maps: (&impl Maps, &impl Maps), before: Option<&FrontendValue>, after: &FrontendValue) -> bool {
    let Some(before) = before else { return false };
    let has_more = |(was, is): (RouteValue, RouteValue)| {
        let (had, has) = (of_route(maps.0, was), of_route(maps.1, is));
        was != is && !had.is_empty() && !has.is_subset(&had)
    };
    after.rebalance.is_some()
        && (before.rebalance != after.rebalance || before.routes().into_iter().zip(after.routes()).any(has_more))
}

fn of_route(maps: &impl Maps, route: RouteValue) -> BTreeSet<SocketAddr> {
    match route {
        RouteValue::Backends { set, count, .. } => backends(maps, set, count),
        RouteValue::Reject | RouteValue::Drop => BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests;
