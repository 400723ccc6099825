//! Pure. Names that are looked up under another name, and the way back for the answer.

use hickory_proto::rr::{Name, RData, Record};

use crate::config::{Pattern, Rewrite};

/// What was done to a question's name.
#[derive(Debug)]
pub struct Rewritten<'a> {
    /// The name to look up.
    pub name: Name,
    /// The rules that did it, each with the name that it met.
    applied: Vec<(&'a Rewrite, Name)>,
}

/// Applies the rules in order. `None`: none fits.
pub fn rewrite<'a>(rules: &'a [Rewrite], asked: &Name) -> Option<Rewritten<'a>> {
    let mut rewritten = Rewritten { name: asked.clone(), applied: Vec::new() };
    for rule in rules {
        let Some(name) = replaced(rule, &rewritten.name) else { continue };
        let before = std::mem::replace(&mut rewritten.name, name);
        rewritten.applied.push((rule, before));
        if !rule.goes_on {
            break;
        }
    }
    (!rewritten.applied.is_empty()).then_some(rewritten)
}

impl Rewritten<'_> {
    /// Turns the records of an answer back. A client does not take a record of a name that it did not ask for, so those of the
    /// name itself are turned back by every rule; others by rules that say so.
    pub fn turn_back(&self, records: &mut [Record]) {
        let mut name = self.name.clone();
        for (rule, before) in self.applied.iter().rev() {
            for record in records.iter_mut() {
                if record.name == name {
                    record.name = before.clone();
                } else if rule.answer {
                    record.name = turned_back(rule, &record.name).unwrap_or_else(|| record.name.clone());
                }
                if rule.answer {
                    turn_data_back(rule, &mut record.data);
                }
            }
            name = before.clone();
        }
    }
}

fn turn_data_back(rule: &Rewrite, data: &mut RData) {
    let target = match data {
        RData::CNAME(cname) => &mut cname.0,
        RData::PTR(ptr) => &mut ptr.0,
        RData::NS(ns) => &mut ns.0,
        RData::SRV(srv) => &mut srv.target,
        RData::MX(mx) => &mut mx.exchange,
        _ => return,
    };
    if let Some(name) = turned_back(rule, target) {
        *target = name;
    }
}

fn replaced(rule: &Rewrite, name: &Name) -> Option<Name> {
    match &rule.from {
        Pattern::Exact(from) => (from == name).then(|| rule.to.clone()),
        Pattern::Suffix(from) => with_suffix(name, from, &rule.to),
    }
}

fn turned_back(rule: &Rewrite, name: &Name) -> Option<Name> {
    match &rule.from {
        Pattern::Exact(from) => (rule.to == *name).then(|| from.clone()),
        Pattern::Suffix(from) => with_suffix(name, &rule.to, from),
    }
}

/// The name with another ending; `None` if it has not this one, or grows too long.
fn with_suffix(name: &Name, from: &Name, to: &Name) -> Option<Name> {
    if !from.zone_of(name) {
        return None;
    }
    let kept = usize::from(name.num_labels()) - usize::from(from.num_labels());
    Name::from_labels(name.iter().take(kept)).ok()?.append_domain(to).ok()
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::rdata::{A, CNAME};

    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    #[test]
    fn names_are_replaced_and_answers_turned_back() {
        let suffix = |from: &str, to: &str, goes_on| Rewrite {
            from: Pattern::Suffix(name(from)),
            to: name(to),
            answer: true,
            goes_on,
        };
        let exact = Rewrite {
            from: Pattern::Exact(name("a.mid.")),
            to: name("web.default.svc.cluster.local."),
            answer: true,
            goes_on: false,
        };
        let rules = [suffix("old.example.", "mid.", true), exact, suffix("mid.", "svc.cluster.local.", false)];
        let rewritten = rewrite(&rules, &name("b.c.OLD.example.")).unwrap();
        assert_eq!(rewritten.name, name("b.c.svc.cluster.local."));
        let mut records = [
            Record::from_rdata(name("b.c.svc.cluster.local."), 5, RData::CNAME(CNAME(name("d.svc.cluster.local.")))),
            Record::from_rdata(name("d.svc.cluster.local."), 5, RData::A(A::new(10, 0, 0, 1))),
        ];
        rewritten.turn_back(&mut records);
        assert!(records[0].name.eq_case(&name("b.c.OLD.example.")));
        assert_eq!(records[0].data, RData::CNAME(CNAME(name("d.old.example."))));
        assert_eq!(records[1].name, name("d.old.example."));
        assert_eq!(rewrite(&rules, &name("a.old.example.")).unwrap().name, name("web.default.svc.cluster.local."));
        assert!(rewrite(&rules, &name("other.example.")).is_none());
    }
}
