//! Pure. The choice of addresses for one Service.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::pool::Pool;
use crate::labels::Labels;
use crate::object::{Family, ObjectName, Protocol};

/// So many addresses of a pool and family are looked at: a range of IPv6 has more than can ever be.
const MOST_LOOKED_AT: usize = 1 << 17;

/// A Service that is to have addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its name.
    pub service: ObjectName,
    /// Its labels.
    pub labels: Labels,
    /// Those of its namespace.
    pub namespace_labels: Labels,
    /// `spec.ipFamilies`: an address of each, in this order.
    pub families: Vec<Family>,
    /// `ipFamilyPolicy: PreferDualStack`: one of them will do.
    pub one_will_do: bool,
    /// What it asks for.
    pub wish: Wish,
    /// What it has.
    pub current: Vec<IpAddr>,
    /// With whom it may have an address in common.
    pub sharing: Sharing,
}

/// What a Service asks for by annotations or `spec.loadBalancerIP`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// Any address.
    Any,
    /// One of this pool.
    Pool(Arc<str>),
    /// These.
    Addresses(Vec<IpAddr>),
}

/// What decides whether two Services may have one address: the same key, the same backends, no port in common.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sharing {
    /// `None`: with nobody.
    pub key: Option<Arc<str>>,
    /// Under a Local policy, namespace and selector: only a node with endpoints of all gets the packets. Else empty.
    pub backends: Arc<str>,
    /// The ports.
    pub ports: BTreeSet<(Protocol, NonZeroU16)>,
}

/// What is known of everybody else.
pub trait Others {
    /// The other Services that have an address.
    fn users(&self, address: IpAddr) -> Vec<(ObjectName, Sharing)>;
    /// The addresses of Services with this sharing key.
    fn shared(&self, key: &str) -> BTreeSet<IpAddr>;
    /// Why no Service may have an address; `None`: nothing speaks against it.
    fn reserved(&self, address: IpAddr) -> Option<String>;
    /// Whether an address was given back a moment ago: somebody may still take it for its last owner's.
    fn is_resting(&self, address: IpAddr) -> bool;
    /// Where somebody who is no Service of ours was found to have an address; `None`: nobody was.
    fn in_use(&self, address: IpAddr) -> Option<String>;
}

/// Addresses for a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// All from this pool.
    pub pool: Arc<str>,
    /// In the order of the Service's families; never empty.
    pub addresses: Vec<IpAddr>,
    /// Why it cannot keep what it had, if so.
    pub lost: Option<Refusal>,
}

/// Why a Service gets no address, or cannot keep it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There are no pools.
    NoPools,
    /// It asks for a pool that is not there.
    UnknownPool(Arc<str>),
    /// An address is of no pool.
    NoPoolHas(IpAddr),
    /// The addresses that it asks for are of different pools.
    TwoPools(Arc<str>, Arc<str>),
    /// The addresses that it asks for, or has, are not of its families.
    Families {
        /// What they are.
        addresses: Vec<IpAddr>,
        /// What it has.
        families: Vec<Family>,
    },
    /// It asks for another pool than the address is of.
    OtherPool {
        /// The address.
        address: IpAddr,
        /// The pool that it is of.
        is_of: Arc<str>,
        /// The one that is asked for.
        wanted: Arc<str>,
    },
    /// It asks for other addresses than it has.
    OtherAddresses(Vec<IpAddr>),
    /// The pool is kept for others.
    NotAdmitted(Arc<str>),
    /// An address cannot be given to it.
    Unfit(IpAddr, Unfit),
    /// No pool has one left for it: each with its reason.
    Nothing(Vec<(Arc<str>, Lacks)>),
}

/// Why an address does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// Others have it, and one of the two does not share.
    Taken(Vec<ObjectName>),
    /// Others have it under another key.
    OtherKey(Vec<ObjectName>),
    /// Others have it, and a Local policy with other backends.
    OtherBackends(Vec<ObjectName>),
    /// Another has it with this port.
    Port(ObjectName, Protocol, NonZeroU16),
    /// No Service may have it.
    Reserved(String),
    /// Somebody else has it, there.
    InUse(String),
}

/// Why a pool has nothing for a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lacks {
    /// It must be asked for by name.
    OnRequest,
    /// It is kept for others.
    KeptForOthers,
    /// It has no addresses of a family.
    Family(Family),
    /// All addresses of a family are taken.
    Full(Family, u128),
}

/// Chooses addresses. The same arguments give the same result.
///
/// # Errors
/// Why there are none.
pub fn choose(pools: &[Pool], request: &Request, others: &impl Others) -> Result<Chosen, Refusal> {
    let choice = Choice { pools, request, others };
    let lost = match choice.keep() {
        Ok(Some(kept)) => return Ok(choice.another_than(&kept).unwrap_or(kept)),
        Ok(None) => None,
        Err(refusal) => Some(refusal),
    };
    let chosen = match &request.wish {
        Wish::Addresses(addresses) => choice.exactly(addresses),
        Wish::Pool(name) => choice.of_pool(name),
        Wish::Any => choice.of_any(),
    }?;
    Ok(Chosen { lost, ..chosen })
}

struct Choice<'a, O> {
    pools: &'a [Pool],
    request: &'a Request,
    others: &'a O,
}

impl<O: Others> Choice<'_, O> {
    /// What it has, as far as it fits; with an address of a family that it lacks, if the pool has one.
    fn keep(&self) -> Result<Option<Chosen>, Refusal> {
        let request = self.request;
        let current: Vec<IpAddr> = self.in_order(&request.current);
        let Some(first) = current.first().or(request.current.first()) else { return Ok(None) };
        let pool = self.pool_of(*first)?;
        if current.is_empty() {
            return Err(self.wrong_families(&request.current));
        }
        if let Some(stranger) = current.iter().find(|address| !pool.has(**address)) {
            return Err(self
                .pool_of(*stranger)
                .map_or_else(|refusal| refusal, |other| Refusal::TwoPools(pool.name.clone(), other.name.clone())));
        }
        self.check_admitted(pool)?;
        match &request.wish {
            Wish::Addresses(wanted) if self.in_order(wanted) != current => {
                return Err(Refusal::OtherAddresses(wanted.clone()));
            }
            Wish::Pool(wanted) if *wanted != pool.name => {
                let (is_of, wanted) = (pool.name.clone(), wanted.clone());
                return Err(Refusal::OtherPool { address: *first, is_of, wanted });
            }
            _ => {}
        }
        for address in &current {
            self.check_fit(*address)?;
        }
        let mut addresses = current;
        for family in &request.families {
            if addresses.iter().any(|address| Family::of(*address) == *family) {
                continue;
            }
            match self.find(pool, *family) {
                Ok(address) if !matches!(request.wish, Wish::Addresses(_)) => addresses.push(address),
                _ if request.one_will_do => {}
                Ok(_) => return Err(self.wrong_families(&addresses)),
                Err(lacks) => return Err(Refusal::Nothing(vec![(pool.name.clone(), lacks)])),
            }
        }
        let addresses = self.in_order(&addresses);
        Ok(Some(Chosen { pool: pool.name.clone(), addresses, lost: None }))
    }

    /// Others of the pool in place of those that somebody else has, if they were not asked for and there are some.
    fn another_than(&self, kept: &Chosen) -> Option<Chosen> {
        if matches!(self.request.wish, Wish::Addresses(_)) {
            return None;
        }
        let pool = self.pools.iter().find(|pool| pool.name == kept.pool)?;
        let mut another = kept.clone();
        for address in &mut another.addresses {
            let Some(place) = self.others.in_use(*address) else { continue };
            let is_good = |free: &IpAddr| self.others.in_use(*free).is_none() && !self.others.is_resting(*free);
            let free = self.find(pool, Family::of(*address)).ok().filter(is_good)?;
            another.lost = Some(Refusal::Unfit(*address, Unfit::InUse(place)));
            *address = free;
        }
        another.lost.is_some().then_some(another)
    }

    fn exactly(&self, wanted: &[IpAddr]) -> Result<Chosen, Refusal> {
        let addresses = self.in_order(wanted);
        let enough =
            addresses.len() == self.request.families.len() || (self.request.one_will_do && !addresses.is_empty());
        if addresses.len() != wanted.len() || !enough {
            return Err(self.wrong_families(wanted));
        }
        let pool = self.pool_of(addresses[0])?;
        for address in &addresses {
            let of = self.pool_of(*address)?;
            if of.name != pool.name {
                return Err(Refusal::TwoPools(pool.name.clone(), of.name.clone()));
            }
            self.check_fit(*address)?;
        }
        self.check_admitted(pool)?;
        Ok(Chosen { pool: pool.name.clone(), addresses, lost: None })
    }

    fn of_pool(&self, name: &Arc<str>) -> Result<Chosen, Refusal> {
        let pool = self.pools.iter().find(|pool| pool.name == *name);
        let pool = pool.ok_or_else(|| Refusal::UnknownPool(name.clone()))?;
        self.check_admitted(pool)?;
        let whole = self.take(pool, false);
        let taken = if self.request.one_will_do { whole.or_else(|_| self.take(pool, true)) } else { whole };
        taken.map_err(|lacks| Refusal::Nothing(vec![(name.clone(), lacks)]))
    }

    fn of_any(&self) -> Result<Chosen, Refusal> {
        if self.pools.is_empty() {
            return Err(Refusal::NoPools);
        }
        let mut open: Vec<&Pool> = self.pools.iter().filter(|pool| pool.auto_assign && self.admits(pool)).collect();
        open.sort_by_key(|pool| {
            let priority = pool.allocation.as_ref().map(|allocation| allocation.priority);
            (priority.is_none(), priority == Some(0), priority, pool.name.clone())
        });
        let ways = if self.request.one_will_do { &[false, true][..] } else { &[false] };
        for partial in ways {
            if let Some(chosen) = open.iter().find_map(|pool| self.take(pool, *partial).ok()) {
                return Ok(chosen);
            }
        }
        let lacks = self.pools.iter().map(|pool| (pool.name.clone(), self.lacks(pool)));
        Err(Refusal::Nothing(lacks.collect()))
    }

    /// Why a pool has nothing; it was looked at before.
    fn lacks(&self, pool: &Pool) -> Lacks {
        if !self.admits(pool) {
            return Lacks::KeptForOthers;
        }
        if !pool.auto_assign {
            return Lacks::OnRequest;
        }
        match self.take(pool, false) {
            Err(lacks) => lacks,
            // It would have been taken.
            Ok(chosen) => Lacks::Full(Family::of(chosen.addresses[0]), 0),
        }
    }

    /// An address of each family; of those that the pool has, if `partial`.
    fn take(&self, pool: &Pool, partial: bool) -> Result<Chosen, Lacks> {
        let mut addresses = Vec::new();
        let mut lacks = Lacks::OnRequest;
        for family in &self.request.families {
            match self.find(pool, *family) {
                Ok(address) => addresses.push(address),
                Err(reason) if partial => lacks = reason,
                Err(reason) => return Err(reason),
            }
        }
        if addresses.is_empty() { Err(lacks) } else { Ok(Chosen { pool: pool.name.clone(), addresses, lost: None }) }
    }

    /// One that it may share with others of its key; else the lowest free one that does not rest; else the lowest that does;
    /// last of all one that somebody else was found to have.
    fn find(&self, pool: &Pool, family: Family) -> Result<IpAddr, Lacks> {
        if !pool.has_family(family) {
            return Err(Lacks::Family(family));
        }
        if let Some(key) = &self.request.sharing.key {
            let shared = self.others.shared(key);
            let fits = |address: &IpAddr| {
                Family::of(*address) == family && pool.has(*address) && self.check_fit(*address).is_ok()
            };
            if let Some(address) = shared.into_iter().find(fits) {
                return Ok(address);
            }
        }
        let (mut resting, mut in_use) = (None, None);
        for address in pool.addresses(family).take(MOST_LOOKED_AT) {
            if !self.others.users(address).is_empty() || self.others.reserved(address).is_some() {
                continue;
            }
            if self.others.in_use(address).is_some() {
                in_use = in_use.or(Some(address));
            } else if self.others.is_resting(address) {
                resting = resting.or(Some(address));
            } else {
                return Ok(address);
            }
        }
        resting.or(in_use).ok_or_else(|| Lacks::Full(family, pool.size(family)))
    }

    fn check_fit(&self, address: IpAddr) -> Result<(), Refusal> {
        let unfit = |unfit| Err(Refusal::Unfit(address, unfit));
        if let Some(reason) = self.others.reserved(address) {
            return unfit(Unfit::Reserved(reason));
        }
        let users = self.others.users(address);
        if users.is_empty() {
            return Ok(());
        }
        let own = &self.request.sharing;
        let names = |users: &[&(ObjectName, Sharing)]| users.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let with = |differs: &dyn Fn(&Sharing) -> bool| -> Vec<ObjectName> {
            names(&users.iter().filter(|(_, sharing)| differs(sharing)).collect::<Vec<_>>())
        };
        let alone = with(&|sharing| own.key.is_none() || sharing.key.is_none());
        if !alone.is_empty() {
            return unfit(Unfit::Taken(alone));
        }
        let other_key = with(&|sharing| sharing.key != own.key);
        if !other_key.is_empty() {
            return unfit(Unfit::OtherKey(other_key));
        }
        let other_backends = with(&|sharing| sharing.backends != own.backends);
        if !other_backends.is_empty() {
            return unfit(Unfit::OtherBackends(other_backends));
        }
        let port = users.iter().find_map(|(name, sharing)| {
            sharing.ports.intersection(&own.ports).next().map(|(protocol, port)| (name.clone(), *protocol, *port))
        });
        port.map_or(Ok(()), |(name, protocol, port)| unfit(Unfit::Port(name, protocol, port)))
    }

    fn admits(&self, pool: &Pool) -> bool {
        let request = self.request;
        pool.admits(&request.service.namespace, &request.namespace_labels, &request.labels)
    }

    fn check_admitted(&self, pool: &Pool) -> Result<(), Refusal> {
        if self.admits(pool) { Ok(()) } else { Err(Refusal::NotAdmitted(pool.name.clone())) }
    }

    fn pool_of(&self, address: IpAddr) -> Result<&Pool, Refusal> {
        self.pools.iter().find(|pool| pool.has(address)).ok_or(Refusal::NoPoolHas(address))
    }

    /// Those of the Service's families, one of each, in the families' order.
    fn in_order(&self, addresses: &[IpAddr]) -> Vec<IpAddr> {
        let of = |family: &Family| addresses.iter().copied().find(|address| Family::of(*address) == *family);
        self.request.families.iter().filter_map(of).collect()
    }

    fn wrong_families(&self, addresses: &[IpAddr]) -> Refusal {
        Refusal::Families { addresses: addresses.to_vec(), families: self.request.families.clone() }
    }
}

fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoPools => f.write_str("there is no IPAddressPool"),
            Refusal::UnknownPool(pool) => write!(f, "there is no pool {pool}"),
            Refusal::NoPoolHas(address) => write!(f, "{address} is an address of no pool"),
            Refusal::TwoPools(one, two) => {
                write!(f, "the addresses are of two pools, {one} and {two}: a Service's addresses are of one pool")
            }
            Refusal::Families { addresses, families } => {
                write!(f, "the Service is of {}, which {} does not fit", list(families), list(addresses))
            }
            Refusal::OtherPool { address, is_of, wanted } => {
                write!(f, "pool {wanted} is asked for, but {address} is of pool {is_of}")
            }
            Refusal::OtherAddresses(wanted) => write!(f, "the Service asks for {} now", list(wanted)),
            Refusal::NotAdmitted(pool) => write!(f, "pool {pool} is kept for other Services (serviceAllocation)"),
            Refusal::Unfit(address, unfit) => write!(f, "{address} cannot be given to it: {unfit}"),
            Refusal::Nothing(pools) => {
                f.write_str("no pool has an address for it: ")?;
                for (index, (pool, lacks)) in pools.iter().enumerate() {
                    write!(f, "{}pool {pool} {lacks}", if index == 0 { "" } else { "; " })?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Taken(users) => write!(f, "{} has it, and not both say metallb.io/allow-shared-ip", list(users)),
            Unfit::OtherKey(users) => write!(f, "{} has it with another sharing key", list(users)),
            Unfit::OtherBackends(users) => write!(
                f,
                "{} has it too, and Services with externalTrafficPolicy Local share an address only with the same pods",
                list(users)
            ),
            Unfit::Port(user, protocol, port) => write!(f, "{user} has its port {port}/{protocol}"),
            Unfit::Reserved(reason) => f.write_str(reason),
            Unfit::InUse(place) => write!(f, "somebody else has it, {place}"),
        }
    }
}

impl fmt::Display for Lacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lacks::OnRequest => f.write_str("gives addresses only to Services that name it (autoAssign: false)"),
            Lacks::KeptForOthers => f.write_str("is kept for other Services (serviceAllocation)"),
            Lacks::Family(family) => write!(f, "has no {family} addresses"),
            Lacks::Full(family, size) => write!(f, "has none of its {size} {family} addresses left"),
        }
    }
}

#[cfg(test)]
mod tests;
