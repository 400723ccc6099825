//! Pure. Gives out cluster addresses and node ports, as the Kubernetes API server does it.
//!
//! A range has a lower and an upper band (KEP-3070, KEP-3668). Who asks for any address gets one of the upper band while there
//! is one, then of the lower; so the lower band stays free for those who ask for a certain one. The lower band is
//! `min(max(16, size / 16), 256)` addresses (of the size of the whole range) or `min(max(16, size / 32), 128)` ports, and
//! none at all in a range of 16 or fewer.
//!
//! The network address of a range is never given out, nor is the broadcast address of an IPv4 range. Randomness is an
//! argument: any number will do, the same number and state give the same result.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// Why an address was not given out. The texts are the API server's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The address is not one that the range gives out.
    #[error("the provided IP ({address}) is not in the valid range. The range of valid IPs is {range}")]
    NotInRange {
        /// The address.
        address: IpAddr,
        /// The range.
        range: IpNet,
    },
    /// Another Service has it.
    #[error("provided IP is already allocated")]
    Taken {
        /// The address.
        address: IpAddr,
    },
    /// All are taken.
    #[error("range is full")]
    Full {
        /// The range.
        range: IpNet,
    },
}

/// Why a node port was not given out. The texts are the API server's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The port is not in the range.
    #[error("provided port is not in the valid range. The range of valid ports is {}-{}", range.start(), range.end())]
    NotInRange {
        /// The port.
        port: u16,
        /// The range.
        range: RangeInclusive<u16>,
    },
    /// Another Service has it.
    #[error("provided port is already allocated")]
    Taken {
        /// The port.
        port: NonZeroU16,
    },
    /// All are taken.
    #[error("range is full")]
    Full {
        /// The range.
        range: RangeInclusive<u16>,
    },
}

/// The addresses of one range.
#[derive(Debug, Clone)]
pub struct AddressAllocator {
    range: IpNet,
    bands: Bands,
}

impl AddressAllocator {
    /// All are free.
    pub fn new(range: IpNet) -> AddressAllocator {
        let range = range.trunc();
        let host_bits = u32::from(range.max_prefix_len() - range.prefix_len());
        let size = 1_u128.checked_shl(host_bits).unwrap_or(u128::MAX);
        // Number 0 is the address after the network's.
        let unusable = if matches!(range, IpNet::V4(_)) { 2 } else { 1 };
        AddressAllocator { range, bands: Bands::new(size.saturating_sub(unusable), lower_band(size, 16, 256)) }
    }

    /// The range.
    pub fn range(&self) -> IpNet {
        self.range
    }

    /// Takes a certain address.
    ///
    /// # Errors
    /// It is not in the range, or taken.
    pub fn reserve(&mut self, address: IpAddr) -> Result<(), AddressError> {
        let number = self.number(address).ok_or(AddressError::NotInRange { address, range: self.range })?;
        if self.bands.take(number) { Ok(()) } else { Err(AddressError::Taken { address }) }
    }

    /// Takes any address, preferably of the upper band; `random` says where the search begins.
    ///
    /// # Errors
    /// None is left.
    pub fn allocate(&mut self, random: u64) -> Result<IpAddr, AddressError> {
        let number = self.bands.any(random).ok_or(AddressError::Full { range: self.range })?;
        self.bands.take(number);
        Ok(self.address(number))
    }

    /// Gives an address back. One that is not taken or not in the range is none of its business.
    pub fn release(&mut self, address: IpAddr) {
        if let Some(number) = self.number(address) {
            self.bands.taken.remove(&number);
        }
    }

    /// Whether the address is taken.
    pub fn is_taken(&self, address: IpAddr) -> bool {
        self.number(address).is_some_and(|number| self.bands.taken.contains(&number))
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.bands.taken.len()
    }

    fn number(&self, address: IpAddr) -> Option<u128> {
        let number = match (self.range, address) {
            (IpNet::V4(range), IpAddr::V4(address)) => {
                u128::from(u32::from(address)).checked_sub(u128::from(u32::from(range.network())))
            }
            (IpNet::V6(range), IpAddr::V6(address)) => u128::from(address).checked_sub(u128::from(range.network())),
            _ => None,
        };
        number?.checked_sub(1).filter(|number| *number < self.bands.size)
    }

    /// The reverse of `number`, for numbers below the size.
    fn address(&self, number: u128) -> IpAddr {
        match self.range {
            IpNet::V4(range) => {
                let number =
                    u32::try_from(number + 1).expect("an IPv4 range has fewer than 2^32 addresses to give out");
                IpAddr::V4(Ipv4Addr::from(u32::from(range.network()) + number))
            }
            IpNet::V6(range) => IpAddr::V6(Ipv6Addr::from(u128::from(range.network()) + number + 1)),
        }
    }
}

/// The node ports of one range.
#[derive(Debug, Clone)]
pub struct PortAllocator {
    range: RangeInclusive<u16>,
    bands: Bands,
}

impl PortAllocator {
    /// Kubernetes' default range.
    pub const DEFAULT_RANGE: RangeInclusive<u16> = 30_000..=32_767;

    /// All are free. Port 0 is never given out; a range that ends before it begins has none.
    pub fn new(range: RangeInclusive<u16>) -> PortAllocator {
        let range = (*range.start()).max(1)..=*range.end();
        let size = range.len() as u128;
        PortAllocator { range, bands: Bands::new(size, lower_band(size, 32, 128)) }
    }

    /// The range.
    pub fn range(&self) -> RangeInclusive<u16> {
        self.range.clone()
    }

    /// Takes a certain port.
    ///
    /// # Errors
    /// It is not in the range, or taken.
    pub fn reserve(&mut self, port: NonZeroU16) -> Result<(), PortError> {
        let number =
            self.number(port).ok_or_else(|| PortError::NotInRange { port: port.get(), range: self.range() })?;
        if self.bands.take(number) { Ok(()) } else { Err(PortError::Taken { port }) }
    }

    /// Takes any port, preferably of the upper band; `random` says where the search begins.
    ///
    /// # Errors
    /// None is left.
    pub fn allocate(&mut self, random: u64) -> Result<NonZeroU16, PortError> {
        let number = self.bands.any(random).ok_or_else(|| PortError::Full { range: self.range() })?;
        self.bands.take(number);
        let port = u16::try_from(u128::from(*self.range.start()) + number).ok().and_then(NonZeroU16::new);
        Ok(port.expect("a number below the size of a range without 0 is a port"))
    }

    /// Gives a port back. One that is not taken or not in the range is none of its business.
    pub fn release(&mut self, port: NonZeroU16) {
        if let Some(number) = self.number(port) {
            self.bands.taken.remove(&number);
        }
    }

    /// Whether the port is taken.
    pub fn is_taken(&self, port: NonZeroU16) -> bool {
        self.number(port).is_some_and(|number| self.bands.taken.contains(&number))
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.bands.taken.len()
    }

    fn number(&self, port: NonZeroU16) -> Option<u128> {
        self.range.contains(&port.get()).then(|| u128::from(port.get() - self.range.start()))
    }
}

/// How many of a range the lower band has: a `step`th, but from 16 to `most`; none of a range as small as that.
fn lower_band(size: u128, step: u128, most: u128) -> u128 {
    const LEAST: u128 = 16;
    if size <= LEAST { 0 } else { (size / step).clamp(LEAST, most) }
}

/// The numbers from 0 to a size, in two bands.
#[derive(Debug, Clone)]
struct Bands {
    size: u128,
    /// How many of them the lower band has; at most `size`.
    lower: u128,
    taken: BTreeSet<u128>,
}

impl Bands {
    fn new(size: u128, lower: u128) -> Bands {
        Bands { size, lower: lower.min(size), taken: BTreeSet::new() }
    }

    /// Whether it was free until now.
    fn take(&mut self, number: u128) -> bool {
        self.taken.insert(number)
    }

    fn any(&self, random: u64) -> Option<u128> {
        self.any_of(self.lower, self.size, random).or_else(|| self.any_of(0, self.lower, random))
    }

    /// A free number from `first` to before `end`: the first from a random place on, in a circle.
    fn any_of(&self, first: u128, end: u128, random: u64) -> Option<u128> {
        let place = first + u128::from(random).checked_rem(end - first)?;
        self.first_free(place, end).or_else(|| self.first_free(first, place))
    }

    fn first_free(&self, first: u128, end: u128) -> Option<u128> {
        let mut free = first;
        for taken in self.taken.range(first..end) {
            if *taken != free {
                break;
            }
            free += 1;
        }
        (free < end).then_some(free)
    }
}

#[cfg(test)]
mod tests;
