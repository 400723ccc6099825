//! Pure. Addresses inside of names: `{pod/web-1}` in a question or an expected answer is the pod's address, `{web}` or
//! `{web.shop}` the Service's, `{$NAME}` a saved one; `{dashed pod/web-1}` is it as a label (10-244-1-7), `{reverse pod/web-1}`
//! as the name that PTR records stand at.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use hickory_proto::rr::{Name, RecordType};
use signpost_core::object::Family;

use super::address::Target;
use super::format::Expect;
use super::listed::{Listed, Saved};
use super::lookup::{Found, NotFound};

/// Which addresses there are.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    /// Pods and Services.
    pub listed: &'a Listed,
    /// What was saved.
    pub saved: &'a BTreeMap<String, Saved>,
}

/// The type of records that a scenario asks for in a family: `address` is the family's own.
///
/// # Errors
/// There is no such type.
pub fn record_type(text: &str, family: Family) -> Result<RecordType, String> {
    match (text, family) {
        ("address", Family::Ipv4) => Ok(RecordType::A),
        ("address", Family::Ipv6) => Ok(RecordType::AAAA),
        _ => text.parse().map_err(|_| format!("there is no record type {text}")),
    }
}

/// The families whose addresses stand in answers of a type, when asked over one of the lab's families.
pub fn families_in(kind: RecordType, asked_over: Family, of_lab: &[Family]) -> Vec<Family> {
    match kind {
        RecordType::A => vec![Family::Ipv4],
        RecordType::AAAA => vec![Family::Ipv6],
        RecordType::SRV => of_lab.to_vec(),
        _ => vec![asked_over],
    }
}

/// A text with the addresses of one family in it.
///
/// # Errors
/// Something that it names has no such address, or a brace stands alone.
pub fn filled(text: &str, family: Family, places: Places<'_>) -> Result<String, String> {
    let mut whole = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (inner, behind) = after.split_once('}').ok_or_else(|| format!("{text}: a brace is not closed"))?;
        let (form, place) = match inner.split_once(' ') {
            Some((form, place)) => (form, place),
            None => ("", inner),
        };
        let target: Target = format!("ping://{place}").parse()?;
        let address = places.listed.resolve(&target, family, places.saved).map_err(|error| error.to_string())?.ip();
        whole.push_str(before);
        whole.push_str(&formed(form, address).ok_or_else(|| format!("{text}: {form} is neither dashed nor reverse"))?);
        rest = behind;
    }
    Ok(whole + rest)
}

fn formed(form: &str, address: IpAddr) -> Option<String> {
    match form {
        "" => Some(address.to_string()),
        "dashed" => Some(address.to_string().replace(['.', ':'], "-")),
        "reverse" => Some(Name::from(address).to_string()),
        _ => None,
    }
}

/// What is expected of a lookup, as records.
///
/// # Errors
/// As [`filled`].
pub fn wanted(answers: &[String], families: &[Family], places: Places<'_>) -> Result<BTreeSet<String>, String> {
    let all = families.iter().flat_map(|family| answers.iter().map(|text| filled(text, *family, places)));
    all.collect()
}

/// Compares what came of a lookup with what must come; without a word about it, there must be records.
///
/// # Errors
/// What does not hold.
pub fn holds(expect: &Expect, wanted: Option<&BTreeSet<String>>, came: &Result<Found, NotFound>) -> Result<(), String> {
    use super::format::Fails;
    match (came, expect.fails) {
        (Err(NotFound::Failed(how, _)), Some(fails)) if fails == Fails::Any || fails == *how => return Ok(()),
        (Err(other), _) => return Err(other.to_string()),
        (Ok(found), Some(fails)) => return Err(format!("must fail ({fails}), but: {found}")),
        (Ok(_), None) => {}
    }
    let Ok(found) = came else { return Err("no answer".to_owned()) };
    let rcode = expect.rcode.as_deref().unwrap_or("NOERROR");
    let right = match wanted {
        Some(wanted) => *wanted == found.answers,
        None if rcode == "NOERROR" => !found.answers.is_empty(),
        None => found.answers.is_empty(),
    };
    if right && found.rcode == rcode { Ok(()) } else { Err(found.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn listed() -> Listed {
        let pod = json!({"metadata": {"name": "web-1", "namespace": "default"}, "status": {"podIPs": [{"ip": "10.244.1.7"}, {"ip": "fd00::7"}]}});
        let service = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"clusterIPs": ["10.96.0.9"], "ipFamilies": ["IPv4"]}});
        Listed { pods: vec![pod], services: vec![service], ..Listed::default() }
    }

    #[test]
    fn braces_become_addresses() {
        let (listed, saved) = (listed(), BTreeMap::new());
        let places = Places { listed: &listed, saved: &saved };
        let v4 = |text: &str| filled(text, Family::Ipv4, places);
        assert_eq!(v4("{pod/web-1}").unwrap(), "10.244.1.7");
        assert_eq!(v4("0 50 80 {dashed pod/web-1}.db.").unwrap(), "0 50 80 10-244-1-7.db.");
        assert_eq!(v4("{reverse web.shop}").unwrap(), "9.0.96.10.in-addr.arpa.");
        assert_eq!(filled("{dashed pod/web-1}", Family::Ipv6, places).unwrap(), "fd00--7");
        for bad in ["{pod/web-2}", "{web", "{upside pod/web-1}", "{web.shop"] {
            assert!(v4(bad).is_err(), "{bad}");
        }
        let both = wanted(&["{dashed pod/web-1}".to_owned()], &[Family::Ipv4, Family::Ipv6], places).unwrap();
        assert_eq!(both.len(), 2);
    }

    #[test]
    fn without_a_word_there_must_be_records() {
        let found = |rcode: &str, answers: &[&str]| {
            let answers = answers.iter().map(|text| (*text).to_owned()).collect();
            Ok(Found { rcode: rcode.to_owned(), answers, asked: "a.".to_owned() })
        };
        let plain = Expect::default();
        assert!(holds(&plain, None, &found("NOERROR", &["10.0.0.1"])).is_ok());
        assert!(holds(&plain, None, &found("NOERROR", &[])).is_err());
        let none = BTreeSet::new();
        assert!(holds(&plain, Some(&none), &found("NOERROR", &[])).is_ok());
        assert!(holds(&plain, Some(&none), &found("NXDOMAIN", &[])).is_err());
        let missing = Expect { rcode: Some("NXDOMAIN".to_owned()), ..Expect::default() };
        assert!(holds(&missing, None, &found("NXDOMAIN", &[])).is_ok());
        assert!(holds(&missing, None, &found("NOERROR", &["1.1.1.1"])).is_err());
    }
}
