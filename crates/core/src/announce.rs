//! Pure. Who announces a load-balancer address: what nodes serve, which advertisements say so, who lives, who owns.
//!
//! ```text
//! Store ──▶ served (Services that this kernel serves) ─┐
//! pools, advertisements, nodes ────────────────────────┼─▶ candidates per address ─┐
//! heartbeats ──▶ liveness ─────────────────────────────┴───────────────────────────┴─▶ ownership ──▶ steps
//! ```

pub mod advertise;
pub mod liveness;
pub mod ownership;
pub mod served;

/// FNV-1a over parts, each with its end, and mixed: the same on every node and in every version.
pub fn hash(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for byte in part.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 29)
}
