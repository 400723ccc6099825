//! The counters of the kernel programs, read: `counters.h` says what they count.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use libbpf_rs::{MapCore, MapFlags};

use super::KernelError;
use super::kernel::READ_BATCH;
use super::layout::endpoint_of;
use crate::counts::{BackendCounts, PortCounts};

/// Its name in the kernel, and of its pin.
pub(super) const COUNTERS: &str = "counters";

/// By the numbers that stand for Service ports (see `program::service_id`).
///
/// # Errors
/// The kernel does not give them.
pub(super) fn read(map: &impl MapCore) -> Result<BTreeMap<u64, PortCounts>, KernelError> {
    let failed = |source| KernelError::Map { op: "read", table: COUNTERS, source };
    let mut all: BTreeMap<u64, PortCounts> = BTreeMap::new();
    let count = READ_BATCH.min(map.max_entries());
    for (key, value) in map.lookup_batch(count, MapFlags::ANY, MapFlags::ANY).map_err(failed)? {
        let (Some((service, backend)), Some(numbers)) = (key_of(&key), numbers(&value)) else { continue };
        let [connections, refused, unanswered, sent_bytes, received_bytes, sent_packets, received_packets] = numbers;
        let port = all.entry(service).or_default();
        port.refused += refused;
        if let Some(backend) = backend {
            let counts =
                BackendCounts { connections, unanswered, sent_bytes, received_bytes, sent_packets, received_packets };
            port.backends.entry(backend).or_default().add(&counts);
        }
    }
    Ok(all)
}

/// The Service port, and the backend, unless it is that for want of one.
fn key_of(bytes: &[u8]) -> Option<(u64, Option<SocketAddr>)> {
    let (service, backend) = bytes.split_first_chunk::<8>()?;
    let backend = endpoint_of(backend)?;
    Some((u64::from_ne_bytes(*service), Some(backend).filter(|backend| backend.port() != 0)))
}

fn numbers(bytes: &[u8]) -> Option<[u64; 7]> {
    let mut all = [0; 7];
    let (chunks, rest) = bytes.as_chunks::<8>();
    if chunks.len() != all.len() || !rest.is_empty() {
        return None;
    }
    all.iter_mut().zip(chunks).for_each(|(number, bytes)| *number = u64::from_ne_bytes(*bytes));
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_service_and_backend_and_numbers_come_in_their_order() {
        let mut key =
            [7_u64.to_ne_bytes().to_vec(), super::super::layout::endpoint("10.0.0.1:80".parse().unwrap())].concat();
        key.extend([0; 4]);
        assert_eq!(key_of(&key), Some((7, Some("10.0.0.1:80".parse().unwrap()))));
        assert_eq!(key_of(&[0; 32]), Some((0, None)));
        assert_eq!(key_of(&[0; 7]), None);
        let bytes: Vec<u8> = (1..=7_u64).flat_map(u64::to_ne_bytes).collect();
        assert_eq!(numbers(&bytes), Some([1, 2, 3, 4, 5, 6, 7]));
        assert_eq!(numbers(&bytes[1..]), None);
    }
}
