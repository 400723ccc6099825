//! What is wrong with the API, told once for all kinds that suffer from it: they share one server.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::{Mutex, PoisonError};

use tracing::{debug, info, warn};

/// The troubles that are on, shared by the sessions of all kinds.
pub(super) struct Troubles {
    /// The server's address.
    server: String,
    /// By text: the kinds that have it.
    on: Mutex<BTreeMap<String, BTreeSet<&'static str>>>,
}

impl Troubles {
    pub(super) fn new(server: &str) -> Troubles {
        Troubles { server: server.to_owned(), on: Mutex::default() }
    }

    /// A request for a kind failed. Only a trouble that no kind has yet is a line for everybody to see.
    pub(super) fn begins(&self, kind: &'static str, text: String, wait_ms: u64) {
        if self.note(kind, &text) {
            warn!(server = self.server, error = text, "the API fails; what is known stays in force, trying again");
        } else {
            debug!(kind, error = text, wait_ms, "the API still fails");
        }
    }

    /// A request for a kind was answered.
    pub(super) fn ends(&self, kind: &'static str) {
        if self.forget(kind) {
            info!(server = self.server, "the API answers again");
        }
    }

    /// One of the troubles that are on.
    pub(super) fn first(&self) -> Option<String> {
        self.on.lock().unwrap_or_else(PoisonError::into_inner).keys().next().cloned()
    }

    /// Whether the trouble is new.
    fn note(&self, kind: &'static str, text: &str) -> bool {
        let mut on = self.on.lock().unwrap_or_else(PoisonError::into_inner);
        let new = !on.contains_key(text);
        on.entry(text.to_owned()).or_default().insert(kind);
        new
    }

    /// Whether no kind has a trouble any more, and this one had.
    fn forget(&self, kind: &'static str) -> bool {
        let mut on = self.on.lock().unwrap_or_else(PoisonError::into_inner);
        let had = !on.is_empty();
        on.retain(|_, kinds| {
            kinds.remove(kind);
            !kinds.is_empty()
        });
        had && on.is_empty()
    }
}

/// An error of the client in one line, with its causes, for a person.
pub(super) fn told(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        let what = if status.message.is_empty() { &status.reason } else { &status.message };
        let hint = match status.code {
            401 => " (the API does not know this token or certificate: it has expired, or is of another cluster)",
            403 => " (this account lacks the right)",
            _ => "",
        };
        return format!("{} {what}{hint}", status.code);
    }
    let mut text = String::new();
    let mut next: Option<&dyn Error> = Some(error);
    while let Some(error) = next {
        let own = error.to_string();
        // Most of these repeat their cause in their own text.
        if text.is_empty() {
            text = own;
        } else if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_of_all_kinds_is_told_once_and_its_end_too() {
        let troubles = Troubles::new("https://n1:6443/");
        assert!(troubles.note("Service", "refused") && !troubles.note("Node", "refused"));
        assert!(!troubles.note("Service", "refused") && troubles.note("Node", "403"));
        assert!(!troubles.forget("Service") && troubles.forget("Node") && !troubles.forget("Node"));
        assert!(troubles.note("Service", "refused"));
    }

    #[test]
    fn a_refusal_is_one_line_without_the_answer_itself() {
        let mut status = kube::core::Status::failure("Unauthorized", "Unauthorized");
        status.code = 401;
        let text = told(&kube::Error::Api(status.boxed()));
        assert!(text.starts_with("401 Unauthorized (the API does not know") && !text.contains('{'), "{text}");
    }
}
