//! Asks the node daemon in the network namespace that the calling thread is in.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use signpost_core::object::Family;
use signpost_core::plan::NodePlan;

use crate::program::Program;
use crate::snapshot::{DaemonState, Unknown};

const METRICS: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 10249);
const CONNECT: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(10);

/// What the daemon says.
#[derive(Default)]
pub(super) struct Said {
    pub(super) state: DaemonState,
    pub(super) plans: BTreeMap<Family, NodePlan>,
    pub(super) programs: BTreeMap<Family, Program>,
    pub(super) unknown: Vec<Unknown>,
}

pub(super) fn ask() -> Said {
    let mut said = Said::default();
    let mode = match get("/proxyMode") {
        Ok((_, mode)) => mode.trim().to_owned(),
        Err(why) => {
            said.state.problem = Some(why);
            return said;
        }
    };
    said.state.answers = true;
    match get("/healthz") {
        Ok((status, text)) => {
            said.state.live = Some(status == 200);
            let body: Value = serde_json::from_str(&text).unwrap_or_default();
            let text = |field: &str| body.get(field).and_then(Value::as_str).map(str::to_owned);
            said.state.waiting_for = text("waitingFor");
            said.state.last_updated = text("lastUpdated");
        }
        Err(why) => said.unknown.push(Unknown { what: "the daemon's health".to_owned(), why }),
    }
    said.note("what the daemon has programmed", || json("/programmed"), |said, found| said.state.programmed = found);
    said.note("the daemon's plans", || json("/plan"), |said, found| said.plans = found);
    let programs = || {
        json::<BTreeMap<Family, Value>>("/program").and_then(|programs| {
            let one = |(family, rules)| {
                let program = serde_json::json!({"mode": mode, "rules": rules});
                let program = serde_json::from_value(program).map_err(|error| format!("mode {mode}: {error}"));
                program.map(|program| (family, program))
            };
            programs.into_iter().map(one).collect()
        })
    };
    said.note("the rules that the daemon made", programs, |said, found| said.programs = found);
    said.state.mode = Some(mode);
    said
}

impl Said {
    /// One question that is not answered is the last: each takes as long as the patience.
    fn note<T>(&mut self, what: &str, ask: impl FnOnce() -> Result<T, String>, take: impl FnOnce(&mut Said, T)) {
        if !self.unknown.is_empty() {
            let why = "not asked, as the daemon left a question unanswered".to_owned();
            return self.unknown.push(Unknown { what: what.to_owned(), why });
        }
        match ask() {
            Ok(found) => take(self, found),
            Err(why) => self.unknown.push(Unknown { what: what.to_owned(), why }),
        }
    }
}

fn json<T: DeserializeOwned>(path: &str) -> Result<T, String> {
    let (status, text) = get(path)?;
    if status != 200 {
        return Err(format!("{path}: status {status}"));
    }
    serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))
}

fn get(path: &str) -> Result<(u16, String), String> {
    let told = |error: std::io::Error| format!("127.0.0.1:10249{path}: {error}");
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from(METRICS), CONNECT).map_err(told)?;
    stream.set_read_timeout(Some(ANSWER)).map_err(told)?;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: application/json\r\n\r\n").as_bytes())
        .map_err(told)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(told)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) =
        answer.split_once("\r\n\r\n").ok_or_else(|| format!("{path}: what answers does not speak HTTP"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok((status, body.to_owned()))
}
