//! Pure. The values that stand in a Corefile: names, addresses, durations, numbers.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::rr::Name;
use ipnet::IpNet;

use super::block::Line;
use super::{CorefileError, Problem};

/// A range of addresses in a zone's place stands for no more reverse zones than this.
const MOST_ZONES: u32 = 256;

impl Line<'_> {
    pub(super) fn fails(&self, problem: Problem) -> CorefileError {
        CorefileError::at(self.line, problem)
    }

    pub(super) fn name(&self) -> &str {
        self.words[0]
    }

    pub(super) fn arguments(&self) -> &[&str] {
        &self.words[1..]
    }

    pub(super) fn usage(&self, of: &'static str, usage: &'static str) -> CorefileError {
        self.fails(Problem::Usage { of, usage })
    }

    /// The only argument.
    pub(super) fn one(&self, of: &'static str, usage: &'static str) -> Result<&str, CorefileError> {
        match self.arguments() {
            [one] => Ok(one),
            _ => Err(self.usage(of, usage)),
        }
    }

    /// No argument.
    pub(super) fn none(&self, of: &'static str) -> Result<(), CorefileError> {
        if self.arguments().is_empty() { Ok(()) } else { Err(self.usage(of, "without anything after it")) }
    }

    /// No block.
    pub(super) fn plain(&self, of: &'static str) -> Result<(), CorefileError> {
        if self.options.is_empty() { Ok(()) } else { Err(self.usage(of, "without a block")) }
    }

    pub(super) fn value(&self, text: &str, expected: &'static str) -> CorefileError {
        self.fails(Problem::Value { text: text.to_owned(), expected })
    }

    pub(super) fn number<T: std::str::FromStr>(&self, text: &str, expected: &'static str) -> Result<T, CorefileError> {
        text.parse().map_err(|_| self.value(text, expected))
    }

    pub(super) fn duration(&self, text: &str) -> Result<Duration, CorefileError> {
        duration(text).ok_or_else(|| self.value(text, "a duration such as 30s, 5m or 1h30m"))
    }

    /// A duration, or a number of seconds.
    pub(super) fn seconds(&self, text: &str) -> Result<Duration, CorefileError> {
        match text.parse::<u32>() {
            Ok(seconds) => Ok(Duration::from_secs(seconds.into())),
            Err(_) => self.duration(text),
        }
    }

    pub(super) fn domain(&self, text: &str) -> Result<Name, CorefileError> {
        domain(text).ok_or_else(|| self.value(text, "a domain name"))
    }

    /// Domain names; ranges of addresses stand for their reverse zones.
    pub(super) fn zones(&self, texts: &[&str]) -> Result<Vec<Name>, CorefileError> {
        let mut zones = Vec::new();
        for text in texts {
            match text.parse::<IpNet>() {
                Ok(range) => zones.extend(
                    reverse_zones(range)
                        .ok_or_else(|| self.value(text, "a range of which at most 256 reverse zones are made"))?,
                ),
                Err(_) => zones.push(self.domain(text)?),
            }
        }
        Ok(zones)
    }

    /// Where to listen: `:8080`, `0.0.0.0:8080`, `[::1]:8080`, `localhost:9153`.
    pub(super) fn listen(&self, text: &str) -> Result<SocketAddr, CorefileError> {
        listen(text).ok_or_else(|| self.value(text, "an address to listen at, such as :8080 or 127.0.0.1:8080"))
    }
}

pub(super) fn domain(text: &str) -> Option<Name> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.is_empty() {
        return Some(Name::root());
    }
    let mut name = Name::from_ascii(text).ok()?.to_lowercase();
    name.set_fqdn(true);
    Some(name)
}

pub(super) fn listen(text: &str) -> Option<SocketAddr> {
    if let Some(port) = text.strip_prefix(':') {
        // Both families, as Linux takes it.
        return Some(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port.parse().ok()?));
    }
    if let Some(port) = text.strip_prefix("localhost:") {
        return Some(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port.parse().ok()?));
    }
    text.parse().ok()
}

/// The reverse zones of a range, at the boundaries that names have.
pub(super) fn reverse_zones(range: IpNet) -> Option<Vec<Name>> {
    let step = if range.addr().is_ipv4() { 8 } else { 4 };
    let length = range.prefix_len().next_multiple_of(step);
    let count = 1u32.checked_shl(u32::from(length - range.prefix_len())).filter(|count| *count <= MOST_ZONES)?;
    let zones = range.trunc().subnets(length).ok()?.map(|range| {
        let (labels, top): (Vec<String>, [&str; 2]) = match range.addr() {
            IpAddr::V4(address) => (address.octets().iter().map(u8::to_string).collect(), ["in-addr", "arpa"]),
            IpAddr::V6(address) => {
                let digits = format!("{:032x}", address.to_bits());
                (digits.chars().map(String::from).collect(), ["ip6", "arpa"])
            }
        };
        let own = labels[..usize::from(length / step)].iter().rev().map(String::as_bytes);
        Name::from_labels(own.chain(top.map(str::as_bytes))).ok()
    });
    let zones: Option<Vec<Name>> = zones.collect();
    zones.filter(|zones| zones.len() == count as usize)
}

/// Go's way to write durations: numbers with units, one after the other.
fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let after = &rest[end..];
        let units = [("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
        let (unit, seconds) = units.into_iter().find(|(unit, _)| after.starts_with(unit))?;
        total = total.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
        rest = &after[unit.len()..];
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (text, ms) in [
            ("30s", Some(30_000)),
            ("1h2m0.5s", Some(3_720_500)),
            ("200ms", Some(200)),
            ("0", Some(0)),
            ("5", None),
            ("s", None),
            ("", None),
            ("1d", None),
            ("1e9h", None),
        ] {
            assert_eq!(duration(text).map(|d| d.as_millis()), ms, "{text}");
        }
    }

    #[test]
    fn ranges_stand_for_reverse_zones_at_the_next_boundary() {
        let zones = |text: &str| {
            reverse_zones(text.parse().unwrap()).map(|all| all.iter().map(Name::to_string).collect::<Vec<_>>())
        };
        assert_eq!(zones("10.0.0.0/8").unwrap(), ["10.in-addr.arpa."]);
        assert_eq!(zones("10.96.0.0/15").unwrap(), ["96.10.in-addr.arpa.", "97.10.in-addr.arpa."]);
        assert_eq!(zones("10.0.0.0/17").unwrap().len(), 128);
        assert_eq!(zones("fd00:10::/32").unwrap(), ["0.1.0.0.0.0.d.f.ip6.arpa."]);
        assert_eq!(zones("0.0.0.0/0").unwrap(), ["in-addr.arpa."]);
    }
}
