//! Pure. Names as the zone looks them up: in lower case, in the form that they have on the wire, label by label.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::Name;

/// A name has no more bytes, the root's included (RFC 1035 section 2.3.4).
const LONGEST: usize = 255;
/// And so no more labels.
const MOST_LABELS: usize = 127;

/// A name in lower case. Any run of its labels is one piece of bytes: `\x03web\x07default`, which no other run equals.
#[derive(Clone)]
pub struct LowerName {
    wire: [u8; LONGEST],
    /// Where each label begins; one more for the end.
    starts: [u8; MOST_LABELS + 1],
    labels: u8,
}

impl LowerName {
    /// The lower case of a name.
    pub fn new(name: &Name) -> LowerName {
        let mut lower = LowerName { wire: [0; LONGEST], starts: [0; MOST_LABELS + 1], labels: 0 };
        let mut at = 0;
        for label in name.iter() {
            let end = at + 1 + label.len();
            if end >= LONGEST || usize::from(lower.labels) == MOST_LABELS {
                // No name of the library is so long; what would not fit is cut off on the right, and so in no zone.
                break;
            }
            lower.wire[at] = label.len() as u8;
            lower.wire[at + 1..end].copy_from_slice(label);
            lower.wire[at + 1..end].make_ascii_lowercase();
            lower.labels += 1;
            lower.starts[usize::from(lower.labels)] = end as u8;
            at = end;
        }
        lower
    }

    /// How many labels.
    pub fn count(&self) -> usize {
        usize::from(self.labels)
    }

    /// The label at this place, from the left.
    pub fn label(&self, at: usize) -> &[u8] {
        &self.run(at, at + 1)[1..]
    }

    /// The labels from one place to before another.
    pub fn run(&self, from: usize, to: usize) -> &[u8] {
        &self.wire[usize::from(self.starts[from])..usize::from(self.starts[to])]
    }

    /// How many labels this name has to the left of `zone`; `None`: it is not in it.
    pub fn below(&self, zone: &LowerName) -> Option<usize> {
        let left = self.count().checked_sub(zone.count())?;
        (self.run(left, self.count()) == zone.run(0, zone.count())).then_some(left)
    }
}

/// The run of labels that a Service or a pod is known by.
pub fn key(labels: [&str; 2]) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(labels[0].len() + labels[1].len() + 2);
    for label in labels {
        // A label that is too long is no label: its length has a value that no name on the wire has.
        bytes.push(u8::try_from(label.len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.into()
}

/// Whether this may stand as one label in a name that we make: letters, digits, dashes inside, of 1 to 63 bytes.
pub fn is_label(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let bytes = text.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|byte| inside(*byte))
        && bytes[0] != b'-'
        && bytes[bytes.len() - 1] != b'-'
}

/// An address as one label: `10-244-1-7`, `fd00--1`.
pub fn dashed(address: IpAddr) -> String {
    let text = address.to_string().replace(['.', ':'], "-");
    // A label neither begins nor ends with a dash.
    let before = if text.starts_with('-') { "0" } else { "" };
    let after = if text.ends_with('-') { "0" } else { "" };
    format!("{before}{text}{after}")
}

/// The address that a label of [`dashed`]'s form says.
pub fn from_dashed(label: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(label).ok()?;
    if text.contains(['.', ':']) {
        return None;
    }
    let as_ipv4 = text.replace('-', ".").parse::<Ipv4Addr>().ok().map(IpAddr::V4);
    as_ipv4.or_else(|| text.replace('-', ":").parse::<Ipv6Addr>().ok().map(IpAddr::V6))
}

/// What a name under `in-addr.arpa` or `ip6.arpa` says: an address, or a range of them by its first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reverse {
    /// The lowest address.
    pub first: IpAddr,
    /// The highest one.
    pub last: IpAddr,
}

impl Reverse {
    /// The only address, if it is one.
    pub fn address(self) -> Option<IpAddr> {
        (self.first == self.last).then_some(self.first)
    }
}

/// Reads a reverse name. `None`: it is none, or no address has such a name.
pub fn reverse(name: &LowerName) -> Option<Reverse> {
    let top = name.count().checked_sub(2)?;
    if name.label(top + 1) != b"arpa" {
        return None;
    }
    match name.label(top) {
        b"in-addr" => reverse_ipv4(name, top),
        b"ip6" => reverse_ipv6(name, top),
        _ => None,
    }
}

fn reverse_ipv4(name: &LowerName, labels: usize) -> Option<Reverse> {
    if labels > 4 {
        return None;
    }
    let (mut first, mut last) = ([0; 4], [255; 4]);
    for at in 0..labels {
        let text = std::str::from_utf8(name.label(labels - 1 - at)).ok()?;
        let written = text.len() == 1 || !text.starts_with('0');
        if !written || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        first[at] = text.parse().ok()?;
        last[at] = first[at];
    }
    Some(Reverse { first: Ipv4Addr::from(first).into(), last: Ipv4Addr::from(last).into() })
}

fn reverse_ipv6(name: &LowerName, labels: usize) -> Option<Reverse> {
    if labels > 32 {
        return None;
    }
    let mut bits: u128 = 0;
    for at in 0..labels {
        let [digit] = name.label(labels - 1 - at) else { return None };
        bits = bits << 4 | u128::from(char::from(*digit).to_digit(16)?);
    }
    let open = 4 * (32 - labels) as u32;
    let first = bits.checked_shl(open).unwrap_or(0);
    let last = first | 1u128.checked_shl(open).map_or(u128::MAX, |above| above - 1);
    Some(Reverse { first: Ipv6Addr::from(first).into(), last: Ipv6Addr::from(last).into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lower(name: &str) -> LowerName {
        LowerName::new(&Name::from_ascii(name).unwrap())
    }

    #[test]
    fn runs_of_labels_are_what_keys_are() {
        let name = lower("_HTTP._tcp.Web.Default.svc.cluster.local.");
        assert_eq!(name.run(2, 4), &*key(["web", "default"]));
        assert_eq!((name.label(0), name.count()), (&b"_http"[..], 7));
        assert_eq!(name.below(&lower("Cluster.Local.")), Some(5));
        assert_eq!(name.below(&lower("other.local.")), None);
        assert_eq!(lower("local.").below(&lower("cluster.local.")), None);
        assert_eq!(name.below(&lower(".")), Some(7));
        // A dot inside a label does not make it two.
        assert_ne!(lower("web\\.default.x.").run(0, 1), &*key(["web", "default"]));
    }

    #[test]
    fn addresses_as_labels_are_read_back() {
        for (address, label) in [
            ("10.244.1.7", "10-244-1-7"),
            ("fd00:10:244::5", "fd00-10-244--5"),
            ("::1", "0--1"),
            ("fd00::", "fd00--0"),
            ("2001:db8:1:2:3:4:5:6", "2001-db8-1-2-3-4-5-6"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(dashed(address), label);
            assert_eq!(from_dashed(label.as_bytes()), Some(address), "{label}");
        }
        for label in ["10-244-1", "10-244-1-256", "web-0", "10.244.1.7", "1-2-3-4-5", ""] {
            assert_eq!(from_dashed(label.as_bytes()), None, "{label}");
        }
    }

    #[test]
    fn reverse_names_say_addresses_and_ranges() {
        let all = |name: &str| reverse(&lower(name)).map(|range| (range.first.to_string(), range.last.to_string()));
        let is = |first: &str, last: &str| Some((first.to_owned(), last.to_owned()));
        assert_eq!(all("1.0.3.10.in-addr.arpa."), is("10.3.0.1", "10.3.0.1"));
        assert_eq!(all("3.10.IN-ADDR.arpa."), is("10.3.0.0", "10.3.255.255"));
        assert_eq!(all("in-addr.arpa."), is("0.0.0.0", "255.255.255.255"));
        let whole = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.B.d.0.1.0.0.2.ip6.arpa.";
        assert_eq!(all(whole), is("2001:db8::1", "2001:db8::1"));
        assert_eq!(all("8.b.d.0.1.0.0.2.ip6.arpa."), is("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"));
        assert_eq!(all("ip6.arpa."), is("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"));
        for none in [
            "0.1.0.3.10.in-addr.arpa.",
            "01.0.3.10.in-addr.arpa.",
            "256.in-addr.arpa.",
            "a1.in-addr.arpa.",
            "g.ip6.arpa.",
            "12.ip6.arpa.",
            "arpa.",
            "a.b.",
        ] {
            assert_eq!(all(none), None, "{none}");
        }
    }
}
