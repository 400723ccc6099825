//! Pure. What looks at a node, and what it finds: `config` takes it, `findings` makes use of it.

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The code of its cause.
    pub code: &'static str,
    /// In plain words.
    pub cause: String,
}

/// Looks at the node of this name. It may take seconds, and runs on a thread of its own.
pub type Look = fn(&str) -> Vec<Found>;
