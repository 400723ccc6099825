//! Pure. Each plugin's lines.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use hickory_proto::rr::Name;

use super::block::{Block, Line};
use super::values::{domain, listen, reverse_zones};
use super::{CorefileError, Problem, forward};
use crate::config::{
    Cache, Health, Hosts, Keep, Kubernetes, Pattern, Prefetch, Ready, Rewrite, ServeStale, ServerBlock,
};
use crate::zone::{PodNames, Settings};

/// The plugins that there are.
pub(super) const NAMES: [&str; 15] = [
    "autopath",
    "bind",
    "cache",
    "errors",
    "forward",
    "health",
    "hosts",
    "kubernetes",
    "loadbalance",
    "log",
    "loop",
    "prometheus",
    "ready",
    "reload",
    "rewrite",
];

/// Those of CoreDNS that are not here, with what to do instead.
const UNSUPPORTED: [(&str, &str); 38] = [
    ("acl", ""),
    ("any", " (ANY is never answered at length)"),
    ("auto", ""),
    ("azure", ""),
    ("bufsize", " (answers over UDP have at most 1232 bytes)"),
    ("cancel", ""),
    ("chaos", ""),
    ("clouddns", ""),
    ("debug", " (set RUST_LOG)"),
    ("dns64", ""),
    ("dnssec", ""),
    ("dnstap", ""),
    ("erratic", ""),
    ("etcd", ""),
    ("file", ""),
    ("geoip", ""),
    ("grpc", ""),
    ("header", ""),
    ("import", " (write the lines here instead)"),
    ("k8s_external", ""),
    ("local", ""),
    ("metadata", ""),
    ("minimal", ""),
    ("multisocket", " (there is a socket for each core)"),
    ("nomad", ""),
    ("nsid", ""),
    ("pprof", ""),
    ("quic", ""),
    ("root", " (write whole paths)"),
    ("route53", ""),
    ("secondary", ""),
    ("sign", ""),
    ("template", " (rewrite name and hosts serve for many of its uses)"),
    ("timeouts", ""),
    ("tls", ""),
    ("trace", ""),
    ("transfer", ""),
    ("whoami", ""),
];

/// One server block.
pub(super) fn server(block: &Block) -> Result<ServerBlock, CorefileError> {
    let (zones, port) = keys(block)?;
    let mut server = empty(zones, port);
    let mut seen: Vec<&str> = Vec::new();
    for line in &block.lines {
        let name = line.name();
        if seen.contains(&name) && !["forward", "rewrite", "bind"].contains(&name) {
            return Err(line.fails(Problem::Twice { name: name.to_owned() }));
        }
        seen.push(name);
        plugin(&mut server, line)?;
    }
    // The one with the longest domain comes first; those of one domain stay in order.
    server.forwards.sort_by_key(|forward| std::cmp::Reverse(forward.from.num_labels()));
    Ok(server)
}

fn empty(zones: Vec<Name>, port: Option<u16>) -> ServerBlock {
    ServerBlock {
        zones,
        port,
        bind: Vec::new(),
        reload: None,
        ready: None,
        health: None,
        prometheus: None,
        errors: false,
        log: false,
        loadbalance: false,
        cache: None,
        rewrites: Vec::new(),
        autopath: false,
        hosts: None,
        kubernetes: None,
        detect_loops: false,
        forwards: Vec::new(),
    }
}

fn plugin(server: &mut ServerBlock, line: &Line) -> Result<(), CorefileError> {
    match line.name() {
        "autopath" => {
            if line.one("autopath", "autopath @kubernetes")? != "@kubernetes" {
                return Err(line.usage("autopath", "autopath @kubernetes"));
            }
            server.autopath = true;
        }
        "bind" => {
            for text in line.arguments() {
                let address: IpAddr = line.number(text, "an address")?;
                server.bind.push(address);
            }
        }
        "cache" => server.cache = Some(cache(line, &server.zones)?),
        "errors" => {
            errors(line)?;
            server.errors = true;
        }
        "forward" => server.forwards.push(forward::forward(line)?),
        "health" => server.health = Some(health(line)?),
        "hosts" => server.hosts = Some(hosts(line, &server.zones)?),
        "kubernetes" => server.kubernetes = Some(kubernetes(line, &server.zones)?),
        "loadbalance" => {
            line.plain("loadbalance")?;
            match line.arguments() {
                [] | ["round_robin"] => server.loadbalance = true,
                _ => return Err(line.usage("loadbalance", "loadbalance [round_robin]")),
            }
        }
        "log" => {
            line.plain("log")?;
            line.none("log")?;
            server.log = true;
        }
        "loop" => {
            line.plain("loop")?;
            line.none("loop")?;
            server.detect_loops = true;
        }
        "prometheus" => {
            line.plain("prometheus")?;
            server.prometheus = Some(address(line, "prometheus", "prometheus [ADDRESS]", "localhost:9153")?);
        }
        "ready" => server.ready = Some(ready(line)?),
        "reload" => server.reload = Some(reload(line)?),
        "rewrite" => server.rewrites.push(rewrite(line)?),
        name => {
            let unsupported = UNSUPPORTED.iter().find(|(known, _)| *known == name);
            return Err(line.fails(match unsupported {
                Some((_, hint)) => Problem::Unsupported { name: name.to_owned(), hint },
                None => Problem::UnknownPlugin { name: name.to_owned() },
            }));
        }
    }
    Ok(())
}

/// `.:53`, `cluster.local in-addr.arpa`, `dns://example.org:1053`, `10.0.0.0/8`.
fn keys(block: &Block) -> Result<(Vec<Name>, Option<u16>), CorefileError> {
    let mut zones = Vec::new();
    let mut port = None;
    for key in &block.keys {
        for text in key.text.split(',').filter(|text| !text.is_empty()) {
            let wrong = || {
                let expected = "a zone such as cluster.local, .:53 or 10.0.0.0/8";
                CorefileError::at(key.line, Problem::Value { text: text.to_owned(), expected })
            };
            let plain = text.strip_prefix("dns://").unwrap_or(text);
            if plain.contains("://") || plain.starts_with('(') {
                return Err(wrong());
            }
            let (zone, own) = match plain.rsplit_once(':') {
                Some((zone, own)) if !zone.contains(':') => (zone, Some(own.parse::<u16>().map_err(|_| wrong())?)),
                _ => (plain, None),
            };
            if own.is_some() && port.is_some() && own != port {
                return Err(wrong());
            }
            port = port.or(own);
            match zone.parse::<ipnet::IpNet>() {
                Ok(range) => zones.extend(reverse_zones(range).ok_or_else(wrong)?),
                Err(_) => zones.push(domain(zone).ok_or_else(wrong)?),
            }
        }
    }
    Ok((zones, port))
}

fn address(line: &Line, of: &'static str, usage: &'static str, default: &str) -> Result<SocketAddr, CorefileError> {
    match line.arguments() {
        [] => Ok(listen(default).expect("the default is an address")),
        [text] => line.listen(text),
        _ => Err(line.usage(of, usage)),
    }
}

fn errors(line: &Line) -> Result<(), CorefileError> {
    line.none("errors")?;
    for option in &line.options {
        // Errors are always told once and then counted; how they are gathered has no options of its own here.
        if !["consolidate", "stacktrace"].contains(&option.name()) {
            let option_name = option.name().to_owned();
            let known = "consolidate and stacktrace, which change nothing";
            return Err(option.fails(Problem::UnknownOption { plugin: "errors", option: option_name, known }));
        }
    }
    Ok(())
}

fn health(line: &Line) -> Result<Health, CorefileError> {
    let address = address(line, "health", "health [ADDRESS]", ":8080")?;
    let mut health = Health { address, lameduck: Duration::ZERO };
    for option in &line.options {
        match option.name() {
            "lameduck" => health.lameduck = option.duration(option.one("lameduck", "lameduck DURATION")?)?,
            other => return Err(unknown(option, "health", other, "lameduck")),
        }
    }
    Ok(health)
}

fn ready(line: &Line) -> Result<Ready, CorefileError> {
    let address = address(line, "ready", "ready [ADDRESS]", ":8181")?;
    let mut ready = Ready { address, continuously: false };
    for option in &line.options {
        match (option.name(), option.arguments()) {
            ("monitor", ["continuously"]) => ready.continuously = true,
            ("monitor", ["until-ready"]) => ready.continuously = false,
            ("monitor", _) => return Err(option.usage("monitor", "monitor until-ready|continuously")),
            (other, _) => return Err(unknown(option, "ready", other, "monitor")),
        }
    }
    Ok(ready)
}

fn reload(line: &Line) -> Result<Duration, CorefileError> {
    line.plain("reload")?;
    let least = Duration::from_secs(2);
    match line.arguments() {
        [] => Ok(Duration::from_secs(30)),
        // The second is what CoreDNS spreads the readings by; ours are spread by when each process began.
        [interval] | [interval, _] => Ok(line.duration(interval)?.max(least)),
        _ => Err(line.usage("reload", "reload [INTERVAL] [JITTER]")),
    }
}

/// `rewrite [continue|stop] name [exact|suffix] FROM TO [answer auto]`
fn rewrite(line: &Line) -> Result<Rewrite, CorefileError> {
    const USAGE: &str = "rewrite [continue|stop] name [exact|suffix] FROM TO [answer auto] (other fields and matches are not supported here)";
    let (goes_on, rest) = match line.arguments() {
        ["continue", rest @ ..] => (true, rest),
        ["stop", rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let (words, answer) = match rest {
        [words @ .., "answer", "auto"] => (words, true),
        words => (words, false),
    };
    line.plain("rewrite")?;
    let (suffix, from, to) = match words {
        ["name", "exact", from, to] | ["name", from, to] => (false, from, to),
        ["name", "suffix", from, to] => (true, from, to),
        _ => return Err(line.usage("rewrite", USAGE)),
    };
    let name = |text: &str| line.domain(text.trim_start_matches('.'));
    let from = if suffix { Pattern::Suffix(name(from)?) } else { Pattern::Exact(name(from)?) };
    // CoreDNS turns the answers of exact rewrites back in any case.
    let answer = answer || matches!(from, Pattern::Exact(_));
    Ok(Rewrite { from, to: name(to)?, answer, goes_on })
}

fn cache(line: &Line, zones: &[Name]) -> Result<Cache, CorefileError> {
    const USAGE: &str = "cache [TTL] [ZONES...]";
    let (ttl, named) = match line.arguments() {
        [ttl, named @ ..] if ttl.parse::<u32>().is_ok() => (Some(line.seconds(ttl)?), named),
        named => (None, named),
    };
    let keep = |most_s: u64| Keep {
        capacity: 9984,
        most_ttl: ttl.unwrap_or(Duration::from_secs(most_s)),
        least_ttl: Duration::from_secs(5),
    };
    let mut cache = Cache {
        zones: if named.is_empty() { zones.to_vec() } else { line.zones(named)? },
        except: Vec::new(),
        success: keep(3600),
        denial: keep(1800),
        servfail: Duration::from_secs(5),
        serve_stale: None,
        prefetch: None,
    };
    if ttl.is_some_and(|ttl| ttl.is_zero()) {
        return Err(line.usage("cache", USAGE));
    }
    for option in &line.options {
        match option.name() {
            "success" => cache.success = kept(option, cache.success)?,
            "denial" => cache.denial = kept(option, cache.denial)?,
            "servfail" => cache.servfail = option.seconds(option.one("servfail", "servfail DURATION")?)?,
            "serve_stale" => cache.serve_stale = Some(serve_stale(option)?),
            // The cluster's own names are answered from memory and never kept: kubeadm's file asks for no more.
            "disable" => match option.arguments() {
                ["success" | "denial", named @ ..] if !named.is_empty() => {
                    cache.except.extend(option.zones(named)?);
                }
                _ => return Err(option.usage("disable", "disable success|denial ZONES...")),
            },
            "prefetch" => cache.prefetch = Some(prefetch(option)?),
            other => {
                return Err(unknown(
                    option,
                    "cache",
                    other,
                    "denial, disable, prefetch, serve_stale, servfail and success",
                ));
            }
        }
    }
    Ok(cache)
}

fn kept(option: &Line, default: Keep) -> Result<Keep, CorefileError> {
    let mut keep = default;
    match option.arguments() {
        [capacity, ttls @ ..] if ttls.len() <= 2 => {
            keep.capacity = option.number(capacity, "a number")?;
            if let Some(most) = ttls.first() {
                keep.most_ttl = option.seconds(most)?;
            }
            if let Some(least) = ttls.get(1) {
                keep.least_ttl = option.seconds(least)?;
            }
        }
        _ => return Err(option.usage("success and denial", "success CAPACITY [TTL] [MINTTL]")),
    }
    Ok(keep)
}

fn serve_stale(option: &Line) -> Result<ServeStale, CorefileError> {
    const USAGE: &str = "serve_stale [DURATION] [immediate|verify]";
    let (lasts, mode) = match option.arguments() {
        [] => (None, None),
        [mode @ ("immediate" | "verify")] => (None, Some(*mode)),
        [lasts] => (Some(*lasts), None),
        [lasts, mode @ ("immediate" | "verify")] => (Some(*lasts), Some(*mode)),
        _ => return Err(option.usage("serve_stale", USAGE)),
    };
    let lasts = lasts.map_or(Ok(Duration::from_secs(3600)), |text| option.duration(text))?;
    Ok(ServeStale { lasts, verify: mode == Some("verify") })
}

fn prefetch(option: &Line) -> Result<Prefetch, CorefileError> {
    const USAGE: &str = "prefetch AMOUNT [DURATION [PERCENTAGE%]]";
    let mut prefetch = Prefetch { amount: 0, within: Duration::from_secs(60), percentage: 10 };
    match option.arguments() {
        [amount, rest @ ..] if rest.len() <= 2 => {
            prefetch.amount = option.number(amount, "a number")?;
            if let Some(within) = rest.first() {
                prefetch.within = option.duration(within)?;
            }
            if let Some(text) = rest.get(1) {
                let number = text.strip_suffix('%').and_then(|number| number.parse().ok());
                let in_range = number.filter(|percentage| (10..=90).contains(percentage));
                prefetch.percentage = in_range.ok_or_else(|| option.value(text, "a percentage of 10% to 90%"))?;
            }
        }
        _ => return Err(option.usage("prefetch", USAGE)),
    }
    Ok(prefetch)
}

fn hosts(line: &Line, zones: &[Name]) -> Result<Hosts, CorefileError> {
    let (file, named) = match line.arguments() {
        [file, named @ ..] => (Some(*file), named),
        [] => (None, &[][..]),
    };
    let mut hosts = Hosts {
        file: file.map(PathBuf::from),
        inline: Vec::new(),
        zones: if named.is_empty() { zones.to_vec() } else { line.zones(named)? },
        ttl_s: 3600,
        no_reverse: false,
        reload: Duration::from_secs(5),
        falls_through: Vec::new(),
    };
    for option in &line.options {
        match option.name() {
            "ttl" => hosts.ttl_s = option.number(option.one("ttl", "ttl SECONDS")?, "a number of seconds")?,
            "no_reverse" => hosts.no_reverse = true,
            "reload" => hosts.reload = option.duration(option.one("reload", "reload DURATION")?)?,
            "fallthrough" => hosts.falls_through = fallthrough(option)?,
            text if text.parse::<IpAddr>().is_ok() => hosts.inline.push(option.words.join(" ")),
            other => {
                let known = "lines ADDRESS NAMES..., ttl, no_reverse, reload and fallthrough";
                return Err(unknown(option, "hosts", other, known));
            }
        }
    }
    if hosts.file.is_none() {
        hosts.file = Some(PathBuf::from("/etc/hosts"));
    }
    Ok(hosts)
}

fn kubernetes(line: &Line, zones: &[Name]) -> Result<Kubernetes, CorefileError> {
    let zones = if line.arguments().is_empty() { zones.to_vec() } else { line.zones(line.arguments())? };
    let mut kubernetes = Kubernetes {
        settings: Settings::new(zones),
        falls_through: Vec::new(),
        kubeconfig: None,
        endpoint: None,
        startup_timeout: Duration::from_secs(5),
    };
    for option in &line.options {
        let settings = &mut kubernetes.settings;
        match option.name() {
            "ttl" => {
                let text = option.one("ttl", "ttl SECONDS")?;
                let ttl_s: u32 = option.number(text, "a number of seconds")?;
                if ttl_s > 3600 {
                    return Err(option.value(text, "at most 3600 seconds"));
                }
                settings.ttl_s = ttl_s;
            }
            "pods" => {
                settings.pods = match option.one("pods", "pods disabled|insecure|verified")? {
                    "disabled" => PodNames::Off,
                    "insecure" => PodNames::Insecure,
                    "verified" => PodNames::Verified,
                    _ => return Err(option.usage("pods", "pods disabled|insecure|verified")),
                }
            }
            "endpoint_pod_names" => settings.endpoint_pod_names = true,
            "noendpoints" => settings.no_endpoints = true,
            "ignore" => match option.arguments() {
                ["empty_service"] => settings.ignore_empty_service = true,
                _ => return Err(option.usage("ignore", "ignore empty_service")),
            },
            "namespaces" => settings.namespaces.extend(option.arguments().iter().map(|name| (*name).into())),
            "fallthrough" => kubernetes.falls_through = fallthrough(option)?,
            "kubeconfig" => match option.arguments() {
                [file] => kubernetes.kubeconfig = Some(PathBuf::from(file)),
                _ => return Err(option.usage("kubeconfig", "kubeconfig FILE (its current context is used)")),
            },
            "endpoint" => kubernetes.endpoint = Some(option.one("endpoint", "endpoint URL")?.to_owned()),
            "startup_timeout" => {
                kubernetes.startup_timeout =
                    option.duration(option.one("startup_timeout", "startup_timeout DURATION")?)?;
            }
            // Deprecated in CoreDNS, without effect there too.
            "upstream" | "resyncperiod" => {}
            other => {
                let known = "endpoint, endpoint_pod_names, fallthrough, ignore empty_service, kubeconfig, namespaces, noendpoints, pods, startup_timeout and ttl";
                return Err(unknown(option, "kubernetes", other, known));
            }
        }
    }
    Ok(kubernetes)
}

/// Without zones: all names.
fn fallthrough(option: &Line) -> Result<Vec<Name>, CorefileError> {
    if option.arguments().is_empty() { Ok(vec![Name::root()]) } else { option.zones(option.arguments()) }
}

pub(super) fn unknown(option: &Line, plugin: &'static str, name: &str, known: &'static str) -> CorefileError {
    option.fails(Problem::UnknownOption { plugin, option: name.to_owned(), known })
}
