//! Pure. Compares what was expected, what the walks predict and what the kernel did.
//!
//! ```text
//! walk(plan) ══ walk(program)      the same fates
//!      ║                           
//!   kernel                         each outcome is one of the fates; without affinity each fate was met
//!      ║
//!  expectation                     holds for the outcomes and for the fates
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::address::{PodName, Source};
use super::format::{Expect, Fails, PeerExpect};
use super::predict::{Answerer, ClusterView, Fate, Prediction, Seen};

/// What came of one try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Somebody answered.
    Answered(Answer),
    /// Nobody did.
    Failed {
        /// How it failed.
        how: Fails,
        /// What the system said.
        detail: String,
    },
    /// The probe itself could not be made: no expectation and no fate allows it.
    Broken {
        /// What the system said.
        detail: String,
    },
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// The pod that answered; `None`: it did not say (no echo server).
    pub pod: Option<PodName>,
    /// The peer's address as the pod saw it.
    pub peer: Option<IpAddr>,
    /// The address and port at which the pod was reached.
    pub reached: Option<SocketAddr>,
    /// What is wrong with the answer: bytes missing, from another address.
    pub fault: Option<String>,
    /// HTTP status.
    pub status: Option<u16>,
    /// HTTP headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// HTTP body.
    pub body: String,
}

/// Where the probe came from and what the lab looks like.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    /// The lab.
    pub view: &'a ClusterView,
    /// The sender.
    pub sender: &'a Source,
}

/// Compares the outcomes with what must come.
///
/// # Errors
/// What does not hold, in a few words.
pub fn outcomes_hold(expect: &Expect, outcomes: &[Outcome], setting: Setting<'_>) -> Result<(), String> {
    if outcomes.is_empty() {
        return Err("nothing was tried".to_owned());
    }
    if let Some(fails) = expect.fails {
        return match outcomes.iter().find(|outcome| !outcome.fails_as(fails)) {
            None => Ok(()),
            Some(other) => Err(format!("must fail ({fails}), but: {other}")),
        };
    }
    let mut answered = BTreeSet::new();
    for outcome in outcomes {
        let answer = outcome.good_answer()?;
        answer_holds(expect, answer, setting)?;
        answered.extend(answer.pod.clone());
    }
    set_holds(expect, &answered)?;
    if let Some(sticky) = expect.sticky
        && sticky != (answered.len() == 1)
    {
        return Err(format!("{} backends answered: {}", answered.len(), list(&answered)));
    }
    shares_hold(expect, outcomes)
}

/// Compares the fates with what must come: the expectation must hold for every packet, not only for those that were
/// sent.
///
/// # Errors
/// What does not hold.
pub fn prediction_holds(expect: &Expect, prediction: &Prediction, setting: Setting<'_>) -> Result<(), String> {
    if let Some(fails) = expect.fails {
        return match prediction.keys().find(|fate| !fails_as(fate, fails)) {
            None => Ok(()),
            Some(other) => Err(format!("must fail ({fails}), but: {other}")),
        };
    }
    if expect.reach.is_none() && expect.only.is_none() && expect.source.is_none() {
        return Ok(());
    }
    let mut reached = BTreeSet::new();
    for fate in prediction.keys() {
        let Fate::Reached { by, source, .. } = fate else { return Err(fate.to_string()) };
        if let Answerer::Pod(pod) = by {
            reached.insert(pod.clone());
        }
        if let Some(peer) = &expect.source
            && !seen_as(source, *peer, setting)
        {
            return Err(format!("the source must be {}, but: {fate}", show_peer(*peer)));
        }
    }
    set_holds(expect, &reached)
}

/// Compares the outcomes with the fates. `every`: each fate must have been met, too.
///
/// # Errors
/// Which outcome no fate allows, or which fate never came.
pub fn kernel_agrees(
    prediction: &Prediction,
    outcomes: &[Outcome],
    view: &ClusterView,
    every: bool,
) -> Result<(), String> {
    if let Some(outcome) = outcomes.iter().find(|outcome| !prediction.keys().any(|fate| outcome.is(fate, view))) {
        return Err(format!("the kernel did what no walk predicts: {outcome}"));
    }
    let missing = prediction.keys().find(|fate| !outcomes.iter().any(|outcome| outcome.is(fate, view)));
    match missing {
        Some(fate) if every => Err(format!("the walks predict what the kernel never did: {fate}")),
        _ => Ok(()),
    }
}

/// How many tries see every one of `members` equally likely backends but once in a thousand million runs.
pub fn tries_to_see_all(members: usize) -> usize {
    /// ln(1e-9).
    const LN_MISS: f64 = -20.723_265_8;
    match members {
        0 | 1 => MIN_TRIES,
        _ => {
            #[expect(clippy::cast_precision_loss, reason = "a lab has fewer than 2^52 pods")]
            let members = members as f64;
            // members * (1 - 1/members)^tries < 1e-9
            let tries = (LN_MISS - members.ln()) / (1.0 - 1.0 / members).ln();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "positive, and small for so few members"
            )]
            let tries = tries.ceil() as usize;
            tries.max(MIN_TRIES)
        }
    }
}

/// How many tries tell shares within a bound from others, but once in a thousand million runs.
pub fn tries_for_shares(within: f64) -> usize {
    // Six standard deviations of a fraction near one half.
    let tries = 0.25 * (6.1 / within.clamp(0.02, 1.0)).powi(2);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 10 and 24,000")]
    let tries = tries.ceil() as usize;
    tries
}

/// One answer says little; a few cost milliseconds.
pub const MIN_TRIES: usize = 4;

impl Outcome {
    fn fails_as(&self, wanted: Fails) -> bool {
        match self {
            Outcome::Answered(_) | Outcome::Broken { .. } => false,
            Outcome::Failed { how, .. } => wanted == Fails::Any || *how == wanted,
        }
    }

    fn good_answer(&self) -> Result<&Answer, String> {
        match self {
            Outcome::Answered(Answer { fault: Some(fault), .. }) => Err(fault.clone()),
            Outcome::Answered(answer) => Ok(answer),
            Outcome::Failed { .. } | Outcome::Broken { .. } => Err(format!("must be answered, but: {self}")),
        }
    }

    fn is(&self, fate: &Fate, view: &ClusterView) -> bool {
        match (self, fate) {
            (Outcome::Answered(answer), Fate::Reached { by, at, source }) => {
                let same = match (by, &answer.pod) {
                    (Answerer::Pod(pod), Some(answered)) => pod == answered,
                    (Answerer::Address(_), _) => true,
                    (Answerer::Pod(_), None) => false,
                };
                same && answer.reached.is_none_or(|reached| reached == *at)
                    && answer.peer.is_none_or(|peer| view.is_seen(source, peer))
            }
            (Outcome::Failed { how, .. }, Fate::Refused) => *how == Fails::Refused,
            (Outcome::Failed { how, .. }, Fate::Dropped) => *how == Fails::Timeout,
            (Outcome::Failed { how, .. }, Fate::Lost) => matches!(how, Fails::Timeout | Fails::Unreachable),
            _ => false,
        }
    }
}

fn fails_as(fate: &Fate, wanted: Fails) -> bool {
    match fate {
        Fate::Reached { .. } => false,
        Fate::Refused => matches!(wanted, Fails::Refused | Fails::Any),
        Fate::Dropped => matches!(wanted, Fails::Timeout | Fails::Any),
        Fate::Lost => matches!(wanted, Fails::Timeout | Fails::Unreachable | Fails::Any),
    }
}

fn answer_holds(expect: &Expect, answer: &Answer, setting: Setting<'_>) -> Result<(), String> {
    if let Some(wanted) = expect.source {
        let peer = answer.peer.ok_or("the answer does not say whom it came from")?;
        if !peer_is(peer, wanted, setting) {
            return Err(format!("the source must be {}, but the backend saw {peer}", show_peer(wanted)));
        }
    }
    if let Some(status) = expect.status
        && answer.status != Some(status)
    {
        return Err(format!("the status must be {status}, but is {}", answer.status.unwrap_or_default()));
    }
    for (name, wanted) in &expect.header {
        let value = answer.headers.get(&name.to_lowercase()).map_or("", String::as_str);
        if !matches(wanted, value) {
            return Err(format!("header {name} must match {wanted}, but is {value:?}"));
        }
    }
    match &expect.body {
        Some(wanted) if !matches(wanted, &answer.body) => {
            Err(format!("the body must match {wanted}, but is {:?}", answer.body))
        }
        _ => Ok(()),
    }
}

/// Patterns were compiled once when the file was read.
fn matches(pattern: &str, text: &str) -> bool {
    regex::Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(text))
}

fn set_holds(expect: &Expect, answered: &BTreeSet<PodName>) -> Result<(), String> {
    let allowed = match (&expect.reach, &expect.only) {
        (None, None) => return Ok(()),
        (reach, only) => {
            let names = reach.iter().chain(only).flatten();
            names.map(|name| PodName::parse(name)).collect::<BTreeSet<_>>()
        }
    };
    if let Some(other) = answered.iter().find(|pod| !allowed.contains(*pod)) {
        return Err(format!("{other} answers, but only {} may", list(&allowed)));
    }
    let missing = expect.reach.iter().flatten().map(|name| PodName::parse(name)).find(|pod| !answered.contains(pod));
    match missing {
        Some(pod) => Err(format!("{pod} never answers")),
        None if answered.is_empty() => Err("no pod answers".to_owned()),
        None => Ok(()),
    }
}

fn shares_hold(expect: &Expect, outcomes: &[Outcome]) -> Result<(), String> {
    let Some(share) = &expect.share else { return Ok(()) };
    let mut counts: BTreeMap<PodName, u32> = BTreeMap::new();
    for outcome in outcomes {
        if let Outcome::Answered(Answer { pod: Some(pod), .. }) = outcome {
            *counts.entry(pod.clone()).or_default() += 1;
        }
    }
    let all = f64::from(counts.values().sum::<u32>().max(1));
    for (name, wanted) in &share.of {
        let got = f64::from(counts.remove(&PodName::parse(name)).unwrap_or(0)) / all;
        if (got - wanted).abs() > share.within {
            return Err(format!(
                "{name} must give {wanted:.2} of the answers within {}, but gave {got:.2}",
                share.within
            ));
        }
    }
    match counts.keys().next() {
        Some(other) => Err(format!("{other} answers, but has no share")),
        None => Ok(()),
    }
}

fn peer_is(peer: IpAddr, wanted: PeerExpect, setting: Setting<'_>) -> bool {
    match wanted {
        PeerExpect::Address(address) => peer == address,
        PeerExpect::Node => setting.view.nodes.iter().any(|node| node.addresses.contains(&peer)),
        PeerExpect::Client => match setting.view.host_of(setting.sender).and_then(|host| setting.view.node(host)) {
            Some(host) => host.addresses.contains(&peer),
            None => setting.view.address_of(setting.sender) == Some(peer),
        },
    }
}

fn seen_as(seen: &Seen, wanted: PeerExpect, setting: Setting<'_>) -> bool {
    match (seen, wanted) {
        (Seen::Address(address), _) => peer_is(*address, wanted, setting),
        (Seen::Node(_), PeerExpect::Node) => true,
        (Seen::Node(name), PeerExpect::Client) => setting.view.host_of(setting.sender) == Some(name),
        (Seen::Node(name), PeerExpect::Address(address)) => {
            setting.view.node(name).is_some_and(|node| node.addresses.contains(&address))
        }
    }
}

fn show_peer(peer: PeerExpect) -> String {
    match peer {
        PeerExpect::Client => "the client".to_owned(),
        PeerExpect::Node => "a node".to_owned(),
        PeerExpect::Address(address) => address.to_string(),
    }
}

fn list(pods: &BTreeSet<PodName>) -> String {
    pods.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Answered(answer) => {
                let pod = answer.pod.as_ref().map_or("somebody".to_owned(), ToString::to_string);
                let at = answer.reached.map(|reached| format!(" at {reached}")).unwrap_or_default();
                match (answer.peer, &answer.fault) {
                    (_, Some(fault)) => write!(f, "{pod}{at} answers wrongly: {fault}"),
                    (Some(peer), None) => write!(f, "{pod}{at} sees {peer}"),
                    (None, None) => write!(f, "{pod}{at} answers"),
                }
            }
            Outcome::Failed { how, detail } if detail.is_empty() => write!(f, "{how}"),
            Outcome::Failed { how, detail } => write!(f, "{how} ({detail})"),
            Outcome::Broken { detail } => write!(f, "the probe itself is broken ({detail})"),
        }
    }
}

#[cfg(test)]
mod tests;
