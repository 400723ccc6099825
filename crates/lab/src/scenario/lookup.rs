//! A name lookup as a program in a pod makes it: through the pod's search list, by UDP, by TCP if the answer is cut off or TCP is
//! asked for.
//!
//! ```text
//! Lookup ─ look_up ─▶ candidates of the search list ─ ask ─▶ socket in the sender's place ─▶ Found
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::expect::Outcome;
use super::format::Fails;
use super::probe::{self, Shot};
use crate::sockets::Sockets;

/// Names with fewer dots are tried with the search list first: what `ndots:5` in a pod's resolv.conf says.
const NDOTS: usize = 5;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// The name; one with a dot at its end is whole.
    pub name: String,
    /// The type of records.
    pub kind: RecordType,
    /// Always by TCP.
    pub by_tcp: bool,
    /// The name server.
    pub server: SocketAddr,
    /// The domains to try.
    pub searches: Vec<String>,
    /// How long one answer may take.
    pub timeout: Duration,
}

/// What the name server said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// `NOERROR`, `NXDOMAIN`, `SERVFAIL`, `REFUSED`.
    pub rcode: String,
    /// The records of the answer, as the scenario writes them.
    pub answers: BTreeSet<String>,
    /// The name that was asked for last.
    pub asked: String,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotFound {
    /// The network's failure.
    Failed(Fails, String),
    /// The question cannot be asked, or the answer not be read.
    Broken(String),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answers: Vec<&str> = self.answers.iter().map(String::as_str).collect();
        write!(f, "{} for {}: [{}]", self.rcode, self.asked, answers.join(", "))
    }
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotFound::Failed(how, detail) if detail.is_empty() => how.fmt(f),
            NotFound::Failed(how, detail) => write!(f, "{how}: {detail}"),
            NotFound::Broken(detail) => f.write_str(detail),
        }
    }
}

/// Asks for the name, as written and below the search list, until there is an answer with records.
///
/// # Errors
/// The first question that gets no answer.
pub fn look_up(sockets: &Sockets, lookup: &Lookup) -> Result<Found, NotFound> {
    let mut without: Option<Found> = None;
    let mut last = None;
    for name in candidates(&lookup.name, &lookup.searches) {
        let found = ask(sockets, lookup, &name)?;
        if !found.answers.is_empty() {
            return Ok(found);
        }
        if found.rcode == "NOERROR" {
            without.get_or_insert(found);
        } else {
            last = Some(found);
        }
    }
    without.or(last).ok_or_else(|| NotFound::Broken("no name was asked for".to_owned()))
}

/// The names to try, in order, whole.
fn candidates(name: &str, searches: &[String]) -> Vec<String> {
    if let Some(whole) = name.strip_suffix('.') {
        return vec![format!("{whole}.")];
    }
    let below = searches.iter().map(|search| format!("{name}.{search}."));
    let whole = format!("{name}.");
    if name.matches('.').count() >= NDOTS {
        std::iter::once(whole).chain(below).collect()
    } else {
        below.chain([whole]).collect()
    }
}

/// The packet that asks for a name.
///
/// # Errors
/// It is no name.
pub fn question(name: &str, kind: RecordType) -> Result<Message, NotFound> {
    let broken = |error: &dyn fmt::Display| NotFound::Broken(format!("{name} cannot be asked for: {error}"));
    let name = Name::from_ascii(name).map_err(|error| broken(&error))?;
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, kind));
    let mut edns = Edns::new();
    edns.set_max_payload(1232);
    message.set_edns(edns);
    Ok(message)
}

fn ask(sockets: &Sockets, lookup: &Lookup, name: &str) -> Result<Found, NotFound> {
    let message = question(name, lookup.kind)?;
    let packet = message.to_vec().map_err(|error| NotFound::Broken(error.to_string()))?;
    let shot = Shot {
        message: probe::Message::Lookup(packet.clone()),
        destination: lookup.server,
        source_port: None,
        size: 0,
        timeout: lookup.timeout,
    };
    if !lookup.by_tcp {
        let answer = read(&message, &probe::exchange(sockets, &shot).map_err(|outcome| failed(&outcome))?)?;
        if !answer.metadata.truncation {
            return Ok(found(name, lookup.kind, &answer));
        }
    }
    let answer = by_tcp(sockets, &shot, &packet).map_err(|outcome| failed(&outcome))?;
    Ok(found(name, lookup.kind, &read(&message, &answer)?))
}

fn failed(outcome: &Outcome) -> NotFound {
    match outcome {
        Outcome::Failed { how, detail } => NotFound::Failed(*how, detail.clone()),
        other => NotFound::Broken(other.to_string()),
    }
}

fn by_tcp(sockets: &Sockets, shot: &Shot, packet: &[u8]) -> Result<Vec<u8>, Box<Outcome>> {
    let deadline = Instant::now() + shot.timeout;
    let mut stream = probe::connected(sockets, shot)?;
    let mut exchange = || -> io::Result<Vec<u8>> {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left))?;
        stream.set_write_timeout(Some(left))?;
        let length = u16::try_from(packet.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        stream.write_all(&[&length.to_be_bytes()[..], packet].concat())?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    };
    exchange().map_err(probe::later)
}

fn read(asked: &Message, answer: &[u8]) -> Result<Message, NotFound> {
    let answer = Message::from_vec(answer).map_err(|error| NotFound::Broken(format!("the answer is none: {error}")))?;
    let same = answer.metadata.id == asked.metadata.id && answer.queries == asked.queries;
    // 0x20: the name comes back as it was written.
    let same_case = answer.queries.iter().zip(&asked.queries).all(|(a, b)| a.name.eq_case(&b.name));
    if same && same_case { Ok(answer) } else { Err(NotFound::Broken("the answer is to another question".to_owned())) }
}

fn found(name: &str, kind: RecordType, answer: &Message) -> Found {
    let answers = answer.answers.iter().filter(|record| record.record_type() == kind || is_alias(record));
    Found {
        rcode: rcode(answer.metadata.response_code),
        answers: answers.map(|record| written(record, kind)).collect(),
        asked: name.to_owned(),
    }
}

fn is_alias(record: &Record) -> bool {
    record.record_type() == RecordType::CNAME
}

/// A record as a scenario writes it: what it holds, and of an alias on the way the word CNAME before it.
fn written(record: &Record, asked: RecordType) -> String {
    match &record.data {
        RData::TXT(text) => {
            text.txt_data.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect::<Vec<_>>().join("")
        }
        data if is_alias(record) && asked != RecordType::CNAME => format!("CNAME {data}"),
        data => data.to_string(),
    }
}

fn rcode(code: ResponseCode) -> String {
    match code {
        ResponseCode::NoError => "NOERROR".to_owned(),
        ResponseCode::NXDomain => "NXDOMAIN".to_owned(),
        ResponseCode::ServFail => "SERVFAIL".to_owned(),
        ResponseCode::Refused => "REFUSED".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_name_is_looked_for_below_the_search_list_first() {
        let searches = ["default.svc.cluster.local".to_owned(), "cluster.local".to_owned()];
        assert_eq!(candidates("web", &searches), ["web.default.svc.cluster.local.", "web.cluster.local.", "web."]);
        assert_eq!(candidates("web.", &searches), ["web."]);
        let long = "a.b.c.d.e.f";
        assert_eq!(candidates(long, &searches)[0], "a.b.c.d.e.f.");
        assert_eq!(candidates(long, &searches).len(), 3);
    }
}
