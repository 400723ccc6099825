//! Pure. A report as text: one line of verdict first, then why, what to do and where to look.

use std::fmt::Write as _;

use super::Report;
use super::finding::{Diagnosis, Finding, Severity, Verdict};
use crate::address::{Destination, PodName, PortRef, Scheme, ServiceRef, Target};
use crate::trace::Evidence;

/// How it is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Style {
    /// With colours.
    pub colour: bool,
    /// The steps of what is well, too.
    pub wide: bool,
    /// One line for each Service alone.
    pub table: bool,
}

/// The text.
pub fn text(report: &Report, style: Style) -> String {
    let mut out = String::new();
    let alone = report.services.len() == 1 && report.nodes.is_none();
    for diagnosis in report.services.iter().chain(&report.nodes) {
        let is_well = diagnosis.verdict == Verdict::Healthy;
        // Of many, those that are well are counted.
        if alone || style.wide || style.table || !is_well {
            one(&mut out, diagnosis, style, alone);
        }
    }
    if !alone {
        let count = |verdict| report.services.iter().filter(|one| one.verdict == verdict).count();
        let _ = writeln!(
            out,
            "{} Services: {} healthy, {} broken, {} degraded, {} undetermined",
            report.services.len(),
            count(Verdict::Healthy),
            count(Verdict::Broken),
            count(Verdict::Degraded),
            count(Verdict::Undetermined),
        );
    }
    out
}

fn mark(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Healthy => ("√", "32"),
        Verdict::Broken => ("×", "31"),
        Verdict::Degraded => ("‼", "33"),
        Verdict::Undetermined => ("?", "36"),
    }
}

fn painted(text: &str, colour: &str, style: Style) -> String {
    if style.colour { format!("\u{1b}[{colour}m{text}\u{1b}[0m") } else { text.to_owned() }
}

fn how(finding: &Finding) -> String {
    let evidence = match finding.evidence() {
        Evidence::Measured => "measured",
        Evidence::Computed => "computed",
        Evidence::Assumed => "assumed",
    };
    match &finding.node {
        Some(node) => format!("[{evidence}, node {node}]"),
        None => format!("[{evidence}]"),
    }
}

fn one(out: &mut String, diagnosis: &Diagnosis, style: Style, alone: bool) {
    let (sign, colour) = mark(diagnosis.verdict);
    let sign = painted(sign, colour, style);
    let subject = &diagnosis.subject;
    match diagnosis.findings.first() {
        Some(first) => {
            let _ = writeln!(
                out,
                "{sign} {subject}: {} {}: {} {}",
                first.code,
                first.code.cause().title,
                first.cause,
                how(first)
            );
        }
        None if diagnosis.verdict == Verdict::Healthy => {
            let (answered, all) = diagnosis.ways;
            let told = if all == 0 {
                "nothing speaks against it".to_owned()
            } else {
                format!("{answered} of {all} ways to it have an answer")
            };
            let _ = writeln!(out, "{sign} {subject}: healthy: {told} [computed]");
        }
        None => {
            let what = diagnosis.unknown.first().map(|unknown| format!("{}: {}", unknown.what, unknown.why));
            let _ = writeln!(
                out,
                "{sign} {subject}: undetermined: nothing speaks against it, but {}",
                what.unwrap_or_else(|| "not all was read".to_owned())
            );
        }
    }
    if style.table {
        return;
    }
    for (number, finding) in diagnosis.findings.iter().enumerate() {
        details(out, finding, number > 0);
    }
    if alone || style.wide {
        for seen in &diagnosis.steps {
            let (sign, colour) = mark(seen.verdict);
            let _ = writeln!(out, "  {} {:<10} {}", painted(sign, colour, style), seen.step.title(), seen.text);
        }
        for unknown in &diagnosis.unknown {
            let _ = writeln!(out, "  ? cannot see {}: {}", unknown.what, unknown.why);
        }
    }
}

fn details(out: &mut String, finding: &Finding, is_further: bool) {
    if is_further {
        let bad = if finding.severity == Severity::Broken { "broken" } else { "degraded" };
        let _ = writeln!(
            out,
            "  also {bad}: {} {}: {} {}",
            finding.code,
            finding.code.cause().title,
            finding.cause,
            how(finding)
        );
    }
    for fact in &finding.facts {
        let _ = writeln!(out, "    {}", fact.text);
    }
    let _ = writeln!(out, "    fix:  {}", finding.fix);
    let page = format!("signpost explain {}", finding.code);
    let next = if finding.next == page { page } else { format!("{}; {page}", finding.next) };
    let _ = writeln!(out, "    next: {next}");
}

/// A destination as the command line takes it.
pub fn target(target: &Target) -> String {
    let scheme = match target.scheme {
        Scheme::Udp => "udp://",
        _ => "",
    };
    let service = |service: &ServiceRef| match service.namespace.as_str() {
        "default" => service.name.clone(),
        namespace => format!("{}.{namespace}", service.name),
    };
    let port = |port: &PortRef| match port {
        PortRef::Number(number) => format!(":{number}"),
        PortRef::Name(name) => format!(":{name}"),
        PortRef::None => String::new(),
    };
    let pod = |name: &PodName| format!("pod/{}/{}", name.namespace, name.name);
    let place = match &target.destination {
        Destination::Cluster(of, number) => format!("{}{}", service(of), port(number)),
        Destination::LoadBalancer(of, number) => format!("lb/{}{}", service(of), port(number)),
        Destination::External(of, number) => format!("external/{}{}", service(of), port(number)),
        Destination::NodePort(node, of, number) => format!("nodeport/{node}/{}{}", service(of), port(number)),
        Destination::Node(node, number) => format!("node/{node}{}", port(number)),
        Destination::Pod(name, number) => format!("{}{}", pod(name), port(number)),
        Destination::Literal(address) => address.to_string(),
        Destination::Saved(name, number) => format!("${name}{}", port(number)),
        Destination::Name(name) => name.clone(),
    };
    format!("{scheme}{place}")
}
