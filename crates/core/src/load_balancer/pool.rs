//! Pure. Pools of addresses.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::labels::{Labels, Selector};
use crate::object::Family;

/// Addresses from a first to a last one, both of the same family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

/// Why a text is no range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Neither form.
    #[error("{text:?} is no range of addresses: write 192.0.2.10-192.0.2.20 or 192.0.2.0/28")]
    Form {
        /// As written.
        text: String,
    },
    /// The wrong way round, or of two families.
    #[error("{text:?} is no range of addresses: the first address does not come before the last one")]
    Order {
        /// As written.
        text: String,
    },
    /// Addresses that no Service can have.
    #[error("{text:?} has addresses that no Service can have: {what}")]
    Special {
        /// As written.
        text: String,
        /// Which.
        what: &'static str,
    },
}

impl FromStr for AddressRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<AddressRange, RangeError> {
        let form = || RangeError::Form { text: text.to_owned() };
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => {
                let address = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| form());
                (address(first)?, address(last)?)
            }
            None => {
                let net: IpNet = text.trim().parse().map_err(|_| form())?;
                (net.network(), net.broadcast())
            }
        };
        if first.is_ipv4() != last.is_ipv4() || first > last {
            return Err(RangeError::Order { text: text.to_owned() });
        }
        let range = AddressRange { first, last };
        match range.special() {
            Some(what) => Err(RangeError::Special { text: text.to_owned(), what }),
            None => Ok(range),
        }
    }
}

impl AddressRange {
    /// The first and the last address.
    pub fn bounds(&self) -> (IpAddr, IpAddr) {
        (self.first, self.last)
    }

    /// Whether an address lies in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && self.first <= address && address <= self.last
    }

    /// Whether two have an address in common.
    pub fn overlaps(&self, other: &AddressRange) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    /// Its family.
    pub fn family(&self) -> Family {
        Family::of(self.first)
    }

    /// How many addresses it has, at most the greatest number.
    pub fn size(&self) -> u128 {
        (number(self.last) - number(self.first)).saturating_add(1)
    }

    /// The addresses in order.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let is_ipv4 = self.first.is_ipv4();
        (number(self.first)..=number(self.last)).map(move |number| address(number, is_ipv4))
    }

    /// Multicast, loopback and the like, which may not be part of a range: each is one block of numbers.
    fn special(&self) -> Option<&'static str> {
        let blocks: [(&str, &'static str); 8] = [
            ("0.0.0.0/8", "0.0.0.0/8"),
            ("127.0.0.0/8", "loopback"),
            ("169.254.0.0/16", "link-local"),
            ("224.0.0.0/3", "multicast and reserved"),
            ("::/127", "unspecified and loopback"),
            ("::ffff:0:0/96", "IPv4 written as IPv6"),
            ("fe80::/10", "link-local"),
            ("ff00::/8", "multicast"),
        ];
        blocks.into_iter().find_map(|(block, what)| {
            let net: IpNet = block.parse().ok()?;
            self.overlaps(&AddressRange { first: net.network(), last: net.broadcast() }).then_some(what)
        })
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn address(number: u128, is_ipv4: bool) -> IpAddr {
    if is_ipv4 { IpAddr::V4((number as u32).into()) } else { IpAddr::V6(number.into()) }
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels, by which advertisements choose it.
    pub labels: Labels,
    /// Its addresses.
    pub ranges: Vec<AddressRange>,
    /// Whether Services that ask for nothing get one.
    pub auto_assign: bool,
    /// Whether .0 and .255 are left out.
    pub avoid_buggy: bool,
    /// Whom it is kept for; `None`: everybody.
    pub allocation: Option<Allocation>,
}

/// Whom a pool is kept for. Each list that is not empty must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Lowest first; 0 comes last.
    pub priority: u32,
    /// Names of namespaces; a Service may also be let in by `namespace_selectors`.
    pub namespaces: BTreeSet<Arc<str>>,
    /// Selectors of namespaces.
    pub namespace_selectors: Vec<Selector>,
    /// Selectors of Services.
    pub service_selectors: Vec<Selector>,
}

impl Pool {
    /// Whether it gives an address out.
    pub fn has(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(address)) && !(self.avoid_buggy && is_buggy(address))
    }

    /// Whether it has addresses of a family.
    pub fn has_family(&self, family: Family) -> bool {
        self.ranges.iter().any(|range| range.family() == family)
    }

    /// Its addresses of a family, in order of its ranges.
    pub fn addresses(&self, family: Family) -> impl Iterator<Item = IpAddr> + '_ {
        let ranges = self.ranges.iter().filter(move |range| range.family() == family);
        ranges.flat_map(AddressRange::addresses).filter(|address| !(self.avoid_buggy && is_buggy(*address)))
    }

    /// How many addresses of a family it has; those left out by `avoid_buggy` too, if there are more than a million.
    pub fn size(&self, family: Family) -> u128 {
        let ranges = self.ranges.iter().filter(|range| range.family() == family);
        let all = ranges.fold(0u128, |sum, range| sum.saturating_add(range.size()));
        if self.avoid_buggy && all <= 1 << 20 { self.addresses(family).count() as u128 } else { all }
    }

    /// The first pair of ranges by which two pools overlap.
    pub fn overlap(&self, other: &Pool) -> Option<(AddressRange, AddressRange)> {
        let pairs = self.ranges.iter().flat_map(|one| other.ranges.iter().map(move |two| (*one, *two)));
        pairs.into_iter().find(|(one, two)| one.overlaps(two))
    }

    /// Whether a Service with these labels, in a namespace with those, may have its addresses.
    pub fn admits(&self, namespace: &str, namespace_labels: &Labels, labels: &Labels) -> bool {
        let Some(allocation) = &self.allocation else { return true };
        let by_name = allocation.namespaces.contains(namespace);
        let by_label = allocation.namespace_selectors.iter().any(|selector| selector.selects(namespace_labels));
        let any_namespace = allocation.namespaces.is_empty() && allocation.namespace_selectors.is_empty();
        (any_namespace || by_name || by_label)
            && (allocation.service_selectors.is_empty()
                || allocation.service_selectors.iter().any(|selector| selector.selects(labels)))
    }
}

/// Some old devices take these for a network's and a broadcast address.
fn is_buggy(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(address) if matches!(address.octets()[3], 0 | 255))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> AddressRange {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_are_read_in_both_forms_and_families() {
        for (text, size, first, last) in [
            ("172.18.15.200-172.18.15.210", 11, "172.18.15.200", "172.18.15.210"),
            (" 10.0.0.5 - 10.0.0.5 ", 1, "10.0.0.5", "10.0.0.5"),
            ("10.0.0.16/28", 16, "10.0.0.16", "10.0.0.31"),
            ("10.0.0.17/28", 16, "10.0.0.16", "10.0.0.31"),
            ("fd00::10-fd00::1f", 16, "fd00::10", "fd00::1f"),
            ("2001:db8::/126", 4, "2001:db8::", "2001:db8::3"),
        ] {
            let range = range(text);
            assert_eq!(range.size(), size, "{text}");
            assert_eq!(range.bounds(), (first.parse().unwrap(), last.parse().unwrap()), "{text}");
        }
        assert_eq!(range("::8000:0:0:0/65").size(), 1 << 63);
    }

    #[test]
    fn impossible_ranges_are_refused_with_what_is_wrong() {
        for (text, said) in [
            ("", "write 192.0.2.10-192.0.2.20"),
            ("10.0.0.1", "write 192.0.2.10-192.0.2.20"),
            ("10.0.0.0/33", "write 192.0.2.10-192.0.2.20"),
            ("a-b", "write 192.0.2.10-192.0.2.20"),
            ("10.0.0.9-10.0.0.1", "does not come before"),
            ("10.0.0.9-fd00::1", "does not come before"),
            ("127.0.0.1-127.0.0.9", "loopback"),
            ("10.0.0.0-239.0.0.0", "loopback"),
            ("239.0.0.1-239.0.0.2", "multicast"),
            ("fe80::1-fe80::2", "link-local"),
            ("::/0", "unspecified"),
            ("::ffff:10.0.0.1-::ffff:10.0.0.2", "IPv4 written as IPv6"),
        ] {
            let error = text.parse::<AddressRange>().unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn buggy_addresses_are_left_out_where_asked_for() {
        let mut pool = Pool {
            name: "a".into(),
            labels: Labels::new(),
            ranges: vec![range("10.0.0.254-10.0.1.1")],
            auto_assign: true,
            avoid_buggy: false,
            allocation: None,
        };
        assert_eq!((pool.size(Family::Ipv4), pool.size(Family::Ipv6)), (4, 0));
        pool.avoid_buggy = true;
        let kept: Vec<String> = pool.addresses(Family::Ipv4).map(|address| address.to_string()).collect();
        assert_eq!(kept, ["10.0.0.254", "10.0.1.1"]);
        assert!(!pool.has("10.0.0.255".parse().unwrap()) && pool.has("10.0.1.1".parse().unwrap()));
    }

    #[test]
    fn a_kept_pool_admits_by_namespace_and_by_service() {
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            pairs.iter().map(|(key, value)| (Arc::from(*key), Arc::from(*value))).collect()
        };
        let wants = |key: &str, value: &str| Selector {
            requirements: vec![crate::labels::Requirement::In(key.into(), [Arc::from(value)].into())],
        };
        let allocation = Allocation {
            namespaces: [Arc::from("shop")].into(),
            namespace_selectors: vec![wants("team", "red")],
            service_selectors: vec![wants("app", "web")],
            ..Allocation::default()
        };
        let pool = Pool {
            name: "a".into(),
            labels: Labels::new(),
            ranges: vec![],
            auto_assign: true,
            avoid_buggy: false,
            allocation: Some(allocation),
        };
        let web = labels(&[("app", "web")]);
        assert!(pool.admits("shop", &Labels::new(), &web));
        assert!(pool.admits("other", &labels(&[("team", "red")]), &web));
        assert!(!pool.admits("other", &Labels::new(), &web));
        assert!(!pool.admits("shop", &Labels::new(), &labels(&[("app", "db")])));
    }
}
