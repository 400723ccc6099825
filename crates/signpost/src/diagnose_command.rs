//! `signpost trace` and `signpost doctor`: where a snapshot comes from, and how what follows from it is shown.
//!
//! ```text
//! --from-file ───────────────┐
//! a lab (its namespaces) ────┼─▶ Snapshot ─▶ signpost_diagnose ─▶ stdout
//! a cluster (its API alone) ─┘
//! ```

mod doctor;
mod measure;
mod probe;
mod source;
mod trace;

pub use doctor::{DoctorCommand, ExplainCommand};
pub use trace::TraceCommand;

/// The command line cannot be understood, or names what is not there.
const USAGE: u8 = 2;
/// It cannot be told.
const UNDETERMINED: u8 = 3;

/// Whether standard output may hold colours: a terminal, whose user did not ask for none (no-color.org).
fn in_colour() -> bool {
    use std::io::IsTerminal;
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A value as YAML.
fn yaml<T: serde::Serialize>(value: &T) -> anyhow::Result<String> {
    // By way of JSON: enums with content then look the same in both.
    Ok(serde_saphyr::to_string(&serde_json::to_value(value)?)?)
}
