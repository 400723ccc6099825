//! Unpredictable bytes: uids, generated names, tokens, the choice of addresses.

use std::sync::OnceLock;

use rustls::crypto::SecureRandom;

/// Fills a buffer from the system's generator.
pub fn bytes<const N: usize>() -> [u8; N] {
    static SOURCE: OnceLock<&'static dyn SecureRandom> = OnceLock::new();
    let mut buffer = [0; N];
    let source = SOURCE.get_or_init(|| rustls::crypto::ring::default_provider().secure_random);
    source.fill(&mut buffer).expect("the system's random generator does not fail once it is seeded");
    buffer
}

/// A random number.
pub fn number() -> u64 {
    u64::from_le_bytes(bytes())
}

/// A version 4 UUID.
pub fn uuid() -> String {
    let mut raw: [u8; 16] = bytes();
    raw[6] = (raw[6] & 0x0f) | 0x40;
    raw[8] = (raw[8] & 0x3f) | 0x80;
    let hex: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The five characters that `generateName` appends: without vowels and without digits that look like letters.
pub fn suffix() -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let raw: [u8; 5] = bytes();
    raw.iter().map(|&byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_uuid_has_version_and_variant() {
        let uuid = super::uuid();
        assert_eq!(uuid.len(), 36);
        assert_eq!(&uuid[14..15], "4");
        assert!("89ab".contains(&uuid[19..20]));
        assert_ne!(uuid, super::uuid());
    }
}
