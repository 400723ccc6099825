//! Pure. Entries as in `/etc/hosts`: addresses of names, and names of addresses.

use std::collections::HashMap;
use std::net::IpAddr;

use hickory_proto::rr::rdata::{A, AAAA, PTR};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::labels::{LowerName, reverse};

/// All entries.
#[derive(Debug, Default)]
pub struct HostsTable {
    addresses: HashMap<Box<[u8]>, Vec<IpAddr>>,
    names: HashMap<IpAddr, Vec<Name>>,
}

impl HostsTable {
    /// Reads lines `ADDRESS NAME...`. Lines of another form are passed over, as resolvers do.
    pub fn read<'a>(lines: impl Iterator<Item = &'a str>) -> HostsTable {
        let mut table = HostsTable::default();
        for line in lines {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else { continue };
            for word in words {
                let text = word.strip_suffix('.').unwrap_or(word);
                let Ok(name) = Name::from_ascii(format!("{text}.")) else { continue };
                let lower = LowerName::new(&name);
                let addresses = table.addresses.entry(lower.run(0, lower.count()).into()).or_default();
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
                table.names.entry(address).or_default().push(name);
            }
        }
        table
    }

    /// How many pairs of a name and an address there are.
    pub fn len(&self) -> usize {
        self.addresses.values().map(Vec::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// The records of a name. `None`: it is not known; empty: it is, but not with this type.
    pub fn answer(&self, name: &Name, kind: RecordType, ttl_s: u32, with_reverse: bool) -> Option<Vec<Record>> {
        let lower = LowerName::new(name);
        let record = |data| Record::from_rdata(name.clone(), ttl_s, data);
        if let Some(addresses) = self.addresses.get(lower.run(0, lower.count())) {
            let data = addresses.iter().filter_map(|address| match (address, kind) {
                (IpAddr::V4(address), RecordType::A) => Some(RData::A(A(*address))),
                (IpAddr::V6(address), RecordType::AAAA) => Some(RData::AAAA(AAAA(*address))),
                _ => None,
            });
            return Some(data.map(record).collect());
        }
        let address = reverse(&lower).and_then(|range| range.address()).filter(|_| with_reverse)?;
        let names = self.names.get(&address)?;
        let data = names.iter().filter(|_| kind == RecordType::PTR).map(|name| RData::PTR(PTR(name.clone())));
        Some(data.map(record).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_found_both_ways() {
        let text = "# comment\n192.0.2.1 one.example two.example # both\n2001:db8::1\tone.example\nno line\n192.0.2.2 bad..name\n";
        let table = HostsTable::read(text.lines());
        let ask = |name: &str, kind| {
            let records = table.answer(&Name::from_ascii(name).unwrap(), kind, 60, true)?;
            Some(records.iter().map(|record| record.data.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(ask("ONE.example.", RecordType::A), Some(vec!["192.0.2.1".to_owned()]));
        assert_eq!(ask("one.example.", RecordType::AAAA), Some(vec!["2001:db8::1".to_owned()]));
        assert_eq!(ask("two.example.", RecordType::AAAA), Some(vec![]));
        assert_eq!(ask("three.example.", RecordType::A), None);
        let both = vec!["one.example.".to_owned(), "two.example.".to_owned()];
        assert_eq!(ask("1.2.0.192.in-addr.arpa.", RecordType::PTR), Some(both));
        assert_eq!(table.len(), 3);
    }
}
