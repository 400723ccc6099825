//! Load-balancer addresses as the node itself sees them: those of our pools answer ping, and their unused ports lead nowhere.
//! On every node, whoever announces them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use futures::StreamExt;
use kube::Client;
use signpost_cluster::watch::{Told, Watches};
use signpost_core::announce::served::AllServed;
use signpost_core::load_balancer::Pool;
use signpost_datapath::nftables::addresses;
use signpost_metallb::IPAddressPool;
use signpost_metallb::convert::Pools;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::RETRY;
use super::known::Table;
use super::numbers::Numbers;

/// Keeps them so until the sender of `served` is gone. The rules stay, as all rules do.
pub async fn run(
    client: Client,
    server: String,
    answer_ping: bool,
    mut served: watch::Receiver<AllServed>,
    numbers: Numbers,
) {
    super::kinds_are_served(&client).await;
    let mut watches = Watches::new(client, &server);
    watches.add_optional("IPAddressPool", None, |told: Told<IPAddressPool>| vec![told]);
    let mut words = watches.into_stream();
    let mut objects: Table<IPAddressPool> = Table::default();
    let (mut read, mut pools) = (Pools::default(), Vec::new());
    let mut done: Option<BTreeSet<IpAddr>> = None;
    // Until the daemon has said what it serves, the rules of its former life stay.
    let (mut published, mut failed, mut said) = (false, false, String::new());
    loop {
        tokio::select! {
            told = words.next() => {
                let Some(told) = told else { return };
                objects.hear(told, Some);
                let all: Vec<Arc<IPAddressPool>> = objects.all().cloned().collect();
                let (usable, faults) = read.update(&all);
                if !all.is_empty() {
                    numbers.configured("pools", faults.len());
                }
                pools = usable;
            }
            changed = served.changed() => {
                if changed.is_err() {
                    return;
                }
                published = true;
            }
            () = tokio::time::sleep(RETRY), if failed => {}
        }
        if !objects.is_synced() || !published {
            continue;
        }
        let wanted = ours(&served.borrow_and_update(), &pools);
        numbers.pools(&pools, &wanted.iter().copied().collect::<Vec<_>>());
        if done.as_ref() == Some(&wanted) {
            continue;
        }
        let written = wanted.clone();
        // Nobody aborts it, and it does not panic; else it is done again.
        let result = tokio::task::spawn_blocking(move || addresses::set(&written, answer_ping)).await;
        failed = !matches!(result, Ok(Ok(())));
        match result {
            Ok(Ok(())) => {
                debug!(addresses = wanted.len(), "load-balancer addresses answer ping, and have no unused ports");
                if !said.is_empty() {
                    info!("load-balancer addresses are guarded again");
                    said.clear();
                }
                done = Some(wanted);
            }
            Ok(Err(error)) if error.to_string() != said => {
                said = error.to_string();
                warn!(%error, "load-balancer addresses do not answer ping, and packets to their unused ports may circle");
            }
            _ => {}
        }
    }
}

/// Those of our pools. Others' (a cloud's) may mean more than this cluster knows.
fn ours(served: &AllServed, pools: &[Pool]) -> BTreeSet<IpAddr> {
    let all = served.values().flat_map(|one| one.addresses.iter().copied());
    all.filter(|address| pools.iter().any(|pool| pool.has(*address))).collect()
}
