//! The secret that lets a client in.

use std::fmt;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::random;

/// A bearer token. Its text never gets into a log: `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A new one, of 256 random bits.
    pub fn generate() -> Token {
        Token(URL_SAFE_NO_PAD.encode(random::bytes::<32>()))
    }

    /// One that exists.
    pub fn new(text: impl Into<String>) -> Token {
        Token(text.into())
    }

    /// Its text, for a kubeconfig.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Writes it to a file that only the owner reads (0600), replacing what is there.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        write_private(path, self.0.as_bytes())
    }

    /// Whether a request's `Authorization` header brings it. Takes the same time for every wrong one.
    pub(crate) fn admits(&self, authorization: Option<&[u8]>) -> bool {
        let given = authorization.and_then(|header| {
            let (scheme, token) = header.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
        });
        // Digests have one length and do not tell where two tokens differ.
        let (ours, theirs) = (Sha256::digest(self.0.as_bytes()), Sha256::digest(given.unwrap_or(b"")));
        let difference = ours.iter().zip(theirs.iter()).fold(0, |sum, (a, b)| sum | (a ^ b));
        given.is_some() & (difference == 0) & !self.0.is_empty()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Writes a file that only its owner reads: under another name first, so that a reader never finds half of it.
///
/// # Errors
/// What the system says.
pub fn write_private(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{:x}", random::number()));
    let temporary = path.with_file_name(name);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = file.write_all(content).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to tell about.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_the_whole_token_admits() {
        let token = Token::new("secret");
        assert!(token.admits(Some(b"Bearer secret")));
        assert!(token.admits(Some(b"bearer secret")));
        for wrong in [&b"Bearer secre"[..], b"Bearer secrets", b"secret", b"Bearer ", b"Basic secret", b""] {
            assert!(!token.admits(Some(wrong)), "{wrong:?}");
        }
        assert!(!token.admits(None));
        assert!(!Token::new("").admits(Some(b"Bearer ")));
        assert_eq!(format!("{token:?}"), "Token(..)");
    }

    #[test]
    fn a_token_file_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "old and readable").unwrap();
        Token::new("secret").write(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "secret");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
