//! Pure. `forward`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::Name;

use super::CorefileError;
use super::block::Line;
use super::plugins::unknown;
use crate::config::{Forward, Policy, Upstream};

const USAGE: &str = "forward FROM TO..., each TO an address or a file such as /etc/resolv.conf";
/// CoreDNS takes no more.
const MOST_UPSTREAMS: usize = 15;

pub(super) fn forward(line: &Line) -> Result<Forward, CorefileError> {
    let [from, to @ ..] = line.arguments() else { return Err(line.usage("forward", USAGE)) };
    if to.is_empty() || to.len() > MOST_UPSTREAMS {
        return Err(line.usage("forward", USAGE));
    }
    // Of a range CoreDNS takes the first of its reverse zones only; a range of one is the same in both.
    let mut zones = line.zones(&[from])?;
    let from = if zones.len() == 1 { zones.remove(0) } else { return Err(line.usage("forward", USAGE)) };
    let mut forward = Forward {
        from,
        to: to.iter().map(|text| upstream(line, text)).collect::<Result<_, _>>()?,
        except: Vec::new(),
        policy: Policy::Random,
        force_tcp: false,
        prefer_udp: false,
        max_fails: 2,
        health_check: Duration::from_millis(500),
        health_domain: Name::root(),
        health_recursion: true,
        read_timeout: Duration::from_secs(2),
        max_concurrent: 0,
        failover: Vec::new(),
        fail_fast: false,
    };
    for line in &line.options {
        option(&mut forward, line)?;
    }
    Ok(forward)
}

fn option(forward: &mut Forward, option: &Line) -> Result<(), CorefileError> {
    match option.name() {
        "except" => forward.except.extend(option.zones(option.arguments())?),
        "force_tcp" => forward.force_tcp = true,
        "prefer_udp" => forward.prefer_udp = true,
        "failfast_all_unhealthy_upstreams" => forward.fail_fast = true,
        "max_fails" => forward.max_fails = option.number(option.one("max_fails", "max_fails NUMBER")?, "a number")?,
        "max_concurrent" => {
            forward.max_concurrent =
                option.number(option.one("max_concurrent", "max_concurrent NUMBER")?, "a number")?;
        }
        "read_timeout" => {
            forward.read_timeout = option.duration(option.one("read_timeout", "read_timeout DURATION")?)?
        }
        // Connections are not kept: each question has a socket, and so a port, of its own.
        "expire" | "max_idle_conns" | "max_connect_attempts" => {}
        "policy" => {
            forward.policy = match option.arguments() {
                ["random"] => Policy::Random,
                ["round_robin"] => Policy::RoundRobin,
                ["sequential"] => Policy::Sequential,
                _ => return Err(option.usage("policy", "policy random|round_robin|sequential")),
            }
        }
        "health_check" => health_check(forward, option)?,
        "failover" => {
            for text in option.arguments() {
                forward.failover.push(
                    code(text).ok_or_else(|| option.value(text, "SERVFAIL, REFUSED, NXDOMAIN, FORMERR or NOTIMP"))?,
                );
            }
        }
        other => {
            let known = "except, failfast_all_unhealthy_upstreams, failover, force_tcp, health_check, max_concurrent, max_fails, policy, prefer_udp and \
                         read_timeout (TLS is not supported here)";
            return Err(unknown(option, "forward", other, known));
        }
    }
    Ok(())
}

/// `health_check DURATION [no_rec] [domain FQDN]`
fn health_check(forward: &mut Forward, option: &Line) -> Result<(), CorefileError> {
    let mut words = option.arguments().iter();
    let Some(every) = words.next() else {
        return Err(option.usage("health_check", "health_check DURATION [no_rec] [domain FQDN]"));
    };
    forward.health_check = option.duration(every)?;
    while let Some(word) = words.next() {
        match (*word, words.clone().next()) {
            ("no_rec", _) => forward.health_recursion = false,
            ("domain", Some(name)) => {
                forward.health_domain = option.domain(name)?;
                words.next();
            }
            _ => return Err(option.usage("health_check", "health_check DURATION [no_rec] [domain FQDN]")),
        }
    }
    Ok(())
}

fn code(text: &str) -> Option<ResponseCode> {
    Some(match text.to_ascii_uppercase().as_str() {
        "SERVFAIL" => ResponseCode::ServFail,
        "REFUSED" => ResponseCode::Refused,
        "NXDOMAIN" => ResponseCode::NXDomain,
        "FORMERR" => ResponseCode::FormErr,
        "NOTIMP" => ResponseCode::NotImp,
        _ => return None,
    })
}

fn upstream(line: &Line, text: &str) -> Result<Upstream, CorefileError> {
    let plain = text.strip_prefix("dns://").unwrap_or(text);
    if plain.starts_with('/') {
        return Ok(Upstream::ResolvConf(PathBuf::from(plain)));
    }
    let bare = plain.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53)).or_else(|_| plain.parse());
    address.map(Upstream::Address).map_err(|_| {
        line.value(text, "an upstream: an address, ADDRESS:PORT, or a file such as /etc/resolv.conf (no names, no TLS)")
    })
}
