//! What this process is and uses, from `/proc`.

use std::time::{SystemTime, UNIX_EPOCH};

/// `CAP_NET_ADMIN`, as its bit in `/proc/self/status` (linux/capability.h).
const CAP_NET_ADMIN: u32 = 12;

/// What the process uses.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Resident memory.
    pub resident_bytes: u64,
    /// Processor time, own and the kernel's for it, without children.
    pub cpu_s: f64,
    /// When it began, in seconds since 1970.
    pub started_s: f64,
}

/// The use of this process; `None` if `/proc` does not say.
pub fn usage() -> Option<Usage> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    // The name in parentheses may hold spaces; fields are counted after it (proc(5), field 3 on).
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok());
    let ticks_per_s = ticks_per_s();
    let up_s: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
    Some(Usage {
        resident_bytes: status_value("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok()? * 1024,
        cpu_s: (field(14)? + field(15)?) as f64 / ticks_per_s,
        started_s: now_s - up_s + field(22)? as f64 / ticks_per_s,
    })
}

/// Whether this process may change the rules of its network namespace.
pub fn may_change_network() -> bool {
    let effective = status_value("CapEff:").and_then(|text| u64::from_str_radix(&text, 16).ok());
    effective.is_some_and(|capabilities| capabilities & (1 << CAP_NET_ADMIN) != 0)
}

fn status_value(name: &str) -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().to_owned())
}

fn ticks_per_s() -> f64 {
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
    ticks.map_or(100.0, |ticks| ticks as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_knows_its_own_size() {
        let usage = usage().unwrap();
        assert!(usage.resident_bytes > 1_000_000 && usage.started_s > 1_600_000_000.0, "{usage:?}");
        assert!(may_change_network(), "the tests run as root");
    }
}
