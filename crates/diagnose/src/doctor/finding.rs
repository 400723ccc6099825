//! Pure. A cause that was found, with its evidence, and what is concluded of one Service.

use serde::{Deserialize, Serialize};

use super::cause::{Code, Step};
use crate::snapshot::Unknown;
use crate::trace::Evidence;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Nobody gets an answer, on a way that should have one.
    Broken,
    /// Some do not, or will not; or something else than was asked for happens.
    Degraded,
}

/// Something that is known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fact {
    /// How.
    pub evidence: Evidence,
    /// What.
    pub text: String,
}

/// A cause that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Which.
    pub code: Code,
    /// How bad.
    pub severity: Severity,
    /// On which node, if on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// In plain words, in this case.
    pub cause: String,
    /// What it is concluded from.
    pub facts: Vec<Fact>,
    /// What to do.
    pub fix: String,
    /// The command to look further.
    pub next: String,
}

impl Finding {
    /// A cause in the words of this case.
    pub fn new(code: Code, severity: Severity, cause: impl Into<String>) -> Finding {
        let next = format!("signpost explain {code}");
        Finding {
            code,
            severity,
            node: None,
            cause: cause.into(),
            facts: Vec::new(),
            fix: code.cause().fix.to_owned(),
            next,
        }
    }

    /// On a node.
    pub fn on(mut self, node: &str) -> Finding {
        self.node = Some(node.to_owned());
        self
    }

    /// With something that was read.
    pub fn measured(mut self, text: impl Into<String>) -> Finding {
        self.facts.push(Fact { evidence: Evidence::Measured, text: text.into() });
        self
    }

    /// With something that follows.
    pub fn computed(mut self, text: impl Into<String>) -> Finding {
        self.facts.push(Fact { evidence: Evidence::Computed, text: text.into() });
        self
    }

    /// With something that is taken to be so.
    pub fn assumed(mut self, text: impl Into<String>) -> Finding {
        self.facts.push(Fact { evidence: Evidence::Assumed, text: text.into() });
        self
    }

    /// With another remedy.
    pub fn fix(mut self, text: impl Into<String>) -> Finding {
        self.fix = text.into();
        self
    }

    /// With a command.
    pub fn next(mut self, command: impl Into<String>) -> Finding {
        self.next = command.into();
        self
    }

    /// How surely it is known: by its best evidence.
    pub fn evidence(&self) -> Evidence {
        self.facts.iter().map(|fact| fact.evidence).min().unwrap_or(Evidence::Computed)
    }
}

/// What is concluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Nobody gets an answer on a way that should have one.
    Broken,
    /// It works, but not as it should.
    Degraded,
    /// What would have to be known is not.
    Undetermined,
    /// Every way that was walked has an answer, and nothing speaks against it.
    Healthy,
}

/// One step of the way from a name to an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepSeen {
    /// Which.
    pub step: Step,
    /// What is concluded.
    pub verdict: Verdict,
    /// From what, or why nothing can be.
    pub text: String,
}

/// One Service, or the nodes as such.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// `namespace/name`; `nodes` for what is no Service's.
    pub subject: String,
    /// What is concluded.
    pub verdict: Verdict,
    /// The causes, the one that blocks first.
    pub findings: Vec<Finding>,
    /// Each step.
    pub steps: Vec<StepSeen>,
    /// How many ways were walked, and how many of them have an answer.
    pub ways: (usize, usize),
    /// What could not be read.
    pub unknown: Vec<Unknown>,
}

impl Diagnosis {
    /// Puts the findings in order: what blocks first, then as one looks; each once.
    pub(super) fn settle(&mut self) {
        let mut kept: Vec<Finding> = Vec::new();
        for finding in std::mem::take(&mut self.findings) {
            let same = |one: &&mut Finding| one.code == finding.code && one.node == finding.node;
            match kept.iter_mut().find(same) {
                Some(other) => {
                    other.severity = other.severity.min(finding.severity);
                    for fact in finding.facts {
                        if !other.facts.contains(&fact) && other.facts.len() < 12 {
                            other.facts.push(fact);
                        }
                    }
                }
                None => kept.push(finding),
            }
        }
        kept.sort_by_key(|one| (one.severity, one.code.cause().step, one.code, one.node.clone()));
        self.findings = kept;
    }

    /// The verdict that the findings give; `known`: all that a healthy one needs was read.
    pub(super) fn conclude(&mut self, known: bool) {
        self.verdict = match self.findings.iter().map(|finding| finding.severity).min() {
            Some(Severity::Broken) => Verdict::Broken,
            Some(Severity::Degraded) if known => Verdict::Degraded,
            None if known => Verdict::Healthy,
            Some(Severity::Degraded) | None => Verdict::Undetermined,
        };
    }
}
