//! The ports of masqueraded sources: kept from the sockets of the node's own network, which choose theirs by themselves, and
//! given back. What was reserved before stands in a map of its own next to the others, so that any daemon can put it back.
//!
//! A socket that asks for such a port by name still gets it; a flow is told from another by both its ends, so the two meet only
//! where that socket talks to the same port of the same pod.

use std::fs;
use std::io;
use std::path::Path;

use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use tracing::{info, warn};

/// As `first_port` and `last_port` in `packets.bpf.c`.
pub(super) const PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;

const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
const BEFORE: &str = "reserved-ports-before";
/// Longer lists are put back without the ports that they had within ours.
const MOST_BYTES: usize = 4096;

/// Keeps the ports from sockets of the calling thread's network namespace. A refusal is told: all else works.
pub(super) fn reserve(pins: &Path) {
    let reserved = || {
        let before = fs::read_to_string(RESERVED)?;
        let before = before.trim();
        if has(before) {
            return Ok(());
        }
        keep(&pins.join(BEFORE), before)?;
        fs::write(RESERVED, with(before))?;
        info!(first = PORTS.start(), last = PORTS.end(), "ports are reserved for masqueraded packets");
        Ok::<_, io::Error>(())
    };
    if let Err(error) = reserved() {
        warn!(%error, "ports of masqueraded packets are not reserved: a socket of the node may choose one of them");
    }
}

/// Puts back what was reserved before, if [`reserve`] changed it.
pub(super) fn release(pins: &Path) {
    let path = pins.join(BEFORE);
    if !path.exists() {
        return;
    }
    let put_back = || {
        let map = MapHandle::from_pinned_path(&path).map_err(io::Error::other)?;
        let bytes = map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).map_err(io::Error::other)?.unwrap_or_default();
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        // An empty line empties the list.
        fs::write(RESERVED, format!("{}\n", String::from_utf8_lossy(text)))?;
        fs::remove_file(&path)
    };
    match put_back() {
        Ok(()) => info!("the ports of masqueraded packets are free again"),
        Err(error) => warn!(%error, "the ports of masqueraded packets stay reserved"),
    }
}

fn keep(path: &Path, text: &str) -> io::Result<()> {
    let mut value = text.as_bytes().to_vec();
    if value.len() >= MOST_BYTES {
        value = without(text).into_bytes();
    }
    value.resize(MOST_BYTES, 0);
    let options = bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
    let size = u32::try_from(MOST_BYTES).map_err(io::Error::other)?;
    let mut map =
        MapHandle::create(MapType::Array, Some("ports_before"), 4, size, 1, &options).map_err(io::Error::other)?;
    map.update(&0_u32.to_ne_bytes(), &value, MapFlags::ANY).map_err(io::Error::other)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => map.pin(path).map_err(io::Error::other),
    }
}

/// The ranges of a list as the kernel writes it.
fn ranges(text: &str) -> impl Iterator<Item = (u16, u16)> {
    text.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    })
}

fn has(text: &str) -> bool {
    ranges(text).any(|(first, last)| first <= *PORTS.start() && last >= *PORTS.end())
}

fn with(text: &str) -> String {
    let ours = format!("{}-{}", PORTS.start(), PORTS.end());
    if text.is_empty() { ours } else { format!("{text},{ours}") }
}

fn without(text: &str) -> String {
    let outside = ranges(text).filter(|(first, last)| last < PORTS.start() || first > PORTS.end());
    outside.map(|(first, last)| format!("{first}-{last}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(with(""), "49152-65535");
        assert_eq!(with("8080,9000-9100"), "8080,9000-9100,49152-65535");
        assert!(has("80,40000-65535") && has(&with("80")) && !has("") && !has("49152-60000"));
        assert_eq!(without("80,9000-9100,50000,49152-65535"), "80-80,9000-9100");
    }
}
