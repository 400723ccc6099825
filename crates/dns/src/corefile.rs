//! Pure. Reads CoreDNS's configuration file, the Corefile.
//!
//! ```text
//! text ─▶ tokens (with lines) ─▶ server blocks ─▶ plugins ─▶ Config
//! ```
//!
//! Every plugin and option that is not known, or known and not to be had here, is an error that names its line: a file
//! is taken as it is, or not at all.

mod block;
mod forward;
mod plugins;
mod tokens;
mod values;

use crate::config::Config;

/// Used when no file is given, with this cluster domain: what kubeadm writes, with answers that are old after 5 seconds.
pub fn default_text(domain: &str) -> String {
    format!(
        ".:53 {{
    errors
    health {{
        lameduck 5s
    }}
    ready
    kubernetes {domain} in-addr.arpa ip6.arpa {{
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
    }}
    prometheus :9153
    forward . /etc/resolv.conf {{
        max_concurrent 1000
    }}
    cache 30
    loop
    loadbalance
}}
"
    )
}

/// The same for a node's cache, which shares its ports with the whole node.
pub fn node_cache_text(domain: &str) -> String {
    default_text(domain)
        .replace("    health {", "    health 127.0.0.1:9254 {")
        .replace("    ready\n", "    ready 127.0.0.1:9255\n")
        .replace("prometheus :9153", "prometheus :9253")
}

/// What is wrong with a Corefile, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Corefile line {line}: {problem}")]
pub struct CorefileError {
    /// The line, from 1.
    pub line: usize,
    /// What.
    pub problem: Problem,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The braces do not match.
    #[error("the file ends inside of a block or a quotation")]
    Unfinished,
    /// A brace where none can be.
    #[error("{token:?} is not expected here: a server block is ZONES {{, then a plugin on each line, then }}")]
    Misplaced {
        /// It.
        token: String,
    },
    /// No server block is there.
    #[error("there is no server block")]
    Empty,
    /// Something CoreDNS has and we do not.
    #[error("the plugin {name} is not supported here{hint}: remove the line, or keep CoreDNS for these zones")]
    Unsupported {
        /// The plugin.
        name: String,
        /// What serves instead.
        hint: &'static str,
    },
    /// Nobody has it.
    #[error("there is no plugin {name}; there are {}", plugins::NAMES.join(", "))]
    UnknownPlugin {
        /// As written.
        name: String,
    },
    /// The same plugin twice in a server block.
    #[error("{name} can stand only once in a server block")]
    Twice {
        /// The plugin.
        name: String,
    },
    /// The plugin has no such option.
    #[error("{plugin} has no option {option} here; it has {known}")]
    UnknownOption {
        /// The plugin.
        plugin: &'static str,
        /// As written.
        option: String,
        /// Those it has.
        known: &'static str,
    },
    /// An option or a plugin has too few or too many words.
    #[error("{of} is written {usage}")]
    Usage {
        /// The plugin or option.
        of: &'static str,
        /// How.
        usage: &'static str,
    },
    /// A value cannot be read.
    #[error("{text:?} is not {expected}")]
    Value {
        /// As written.
        text: String,
        /// What should stand there.
        expected: &'static str,
    },
    /// Two server blocks answer for the same zone at the same place.
    #[error("the zone {zone} is served at this port by a block further up")]
    Overlap {
        /// The zone.
        zone: String,
    },
}

impl CorefileError {
    fn at(line: usize, problem: Problem) -> CorefileError {
        CorefileError { line, problem }
    }
}

/// Reads a Corefile. `environment` gives the variables that the file names as `{$NAME}`.
///
/// # Errors
/// The first thing that is wrong.
pub fn read(text: &str, environment: impl Fn(&str) -> Option<String>) -> Result<Config, CorefileError> {
    let tokens = tokens::tokens(text, environment)?;
    let blocks = block::blocks(&tokens)?;
    let mut servers = Vec::new();
    for block in &blocks {
        servers.push(plugins::server(block)?);
    }
    for (at, server) in servers.iter().enumerate() {
        for earlier in &servers[..at] {
            let same_place = server.port == earlier.port && server.bind == earlier.bind;
            if let Some(zone) = server.zones.iter().find(|zone| same_place && earlier.zones.contains(zone)) {
                let problem = Problem::Overlap { zone: zone.to_string() };
                return Err(CorefileError::at(blocks[at].line, problem));
            }
        }
    }
    if servers.is_empty() {
        return Err(CorefileError::at(1, Problem::Empty));
    }
    Ok(Config { servers })
}

#[cfg(test)]
mod tests;
