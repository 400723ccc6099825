//! A thread that keeps flows in step, so that who applies rules does not wait for a long list of flows.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use std::{io, thread};

use signpost_core::object::Family;
use tracing::warn;

use super::{Conntrack, Wanted};

/// The pause between two sweeps; a failed one is tried again after the same.
const PAUSE: Duration = Duration::from_secs(1);

/// What a worker has done since it began. For metrics.
#[derive(Debug, Default)]
pub struct Totals {
    /// Flows deleted.
    pub deleted: AtomicU64,
    /// Sweeps done.
    pub sweeps: AtomicU64,
    /// Sweeps that failed.
    pub failures: AtomicU64,
    /// Time that sweeps took, in microseconds.
    pub busy_us: AtomicU64,
}

/// Keeps one family's flows in step. Ends when it is dropped, after a sweep that runs.
#[derive(Debug)]
pub struct Worker {
    orders: Sender<Order>,
    totals: Arc<Totals>,
}

#[derive(Debug)]
enum Order {
    Remember(Vec<SocketAddr>),
    Want(Wanted),
}

impl Worker {
    /// Starts the thread, in the calling thread's network namespace.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(family: Family) -> io::Result<Worker> {
        let (orders, received) = channel();
        let totals = Arc::new(Totals::default());
        let counted = totals.clone();
        let name = format!("conntrack-{family}");
        thread::Builder::new().name(name).spawn(move || work(Conntrack::new(family), &received, &counted))?;
        Ok(Worker { orders, totals })
    }

    /// See [`Conntrack::remember`].
    pub fn remember(&self, served: Vec<SocketAddr>) {
        self.order(Order::Remember(served));
    }

    /// The rules were brought to this: soon flows will be, too. Does not wait.
    pub fn want(&self, wanted: Wanted) {
        self.order(Order::Want(wanted));
    }

    /// What was done so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    fn order(&self, order: Order) {
        if self.orders.send(order).is_err() {
            warn!("the thread that deletes stale flows has ended");
        }
    }
}

fn work(mut conntrack: Conntrack, orders: &Receiver<Order>, totals: &Totals) {
    let mut earliest = Instant::now();
    loop {
        let order = if conntrack.needs_sweep() {
            orders.recv_timeout(earliest.saturating_duration_since(Instant::now()))
        } else {
            orders.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match order {
            Ok(Order::Remember(served)) => conntrack.remember(served),
            Ok(Order::Want(wanted)) => conntrack.want(wanted),
            Err(RecvTimeoutError::Timeout) => {
                sweep(&mut conntrack, totals);
                earliest = Instant::now() + PAUSE;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn sweep(conntrack: &mut Conntrack, totals: &Totals) {
    let began = Instant::now();
    match conntrack.reconcile() {
        Ok(done) => {
            totals.sweeps.fetch_add(1, Ordering::Relaxed);
            totals.deleted.fetch_add(done.deleted as u64, Ordering::Relaxed);
        }
        Err(error) => {
            totals.failures.fetch_add(1, Ordering::Relaxed);
            warn!(%error, "stale flows stay for now");
        }
    }
    totals.busy_us.fetch_add(began.elapsed().as_micros() as u64, Ordering::Relaxed);
}
