//! Pure. What the runner prints, and the same as JUnit XML for build servers.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use super::format::{FamilyRun, Mode};

/// How one scenario went in one mode and family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunReport {
    /// The file.
    pub file: PathBuf,
    /// The scenario's name.
    pub name: String,
    /// The mode and the family; `None`: the file cannot be run in any.
    pub run: Option<(Mode, FamilyRun)>,
    /// How long it took, without making the lab.
    pub took: Duration,
    /// What failed, if anything did.
    pub failure: Option<Failure>,
}

/// What failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Line of the step in the file; 0: no step.
    pub line: u64,
    /// What did not hold, and what was seen: one or more lines.
    pub detail: String,
}

impl RunReport {
    /// Of a file that is refused before anything runs.
    pub fn refused(file: PathBuf, failure: Failure) -> RunReport {
        let name = file.display().to_string();
        RunReport { file, name, run: None, took: Duration::ZERO, failure: Some(failure) }
    }

    fn title(&self) -> String {
        match self.run {
            Some((mode, family)) => format!("{} [{mode} {family}]", self.name),
            None => self.name.clone(),
        }
    }

    /// `ok` or `FAIL`, and under a failure what came.
    pub fn lines(&self) -> String {
        let took_ms = self.took.as_millis();
        let head = self.title();
        let Some(failure) = &self.failure else { return format!("ok   {head} {took_ms} ms\n") };
        let mut text = format!("FAIL {head} {}:{}\n", self.file.display(), failure.line.max(1));
        for line in failure.detail.lines() {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "     {line}");
        }
        text
    }
}

/// The closing line, alone on its line.
pub fn summary(reports: &[RunReport]) -> String {
    let failed = reports.iter().filter(|report| report.failure.is_some()).count();
    format!("{} passed, {failed} failed", reports.len() - failed)
}

/// JUnit XML: one suite, a case per scenario, mode and family.
pub fn junit(reports: &[RunReport]) -> String {
    let failed = reports.iter().filter(|report| report.failure.is_some()).count();
    let whole: Duration = reports.iter().map(|report| report.took).sum();
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"scenarios\" tests=\"{}\" \
         failures=\"{failed}\" errors=\"0\" skipped=\"0\" time=\"{:.3}\">\n",
        reports.len(),
        whole.as_secs_f64(),
    );
    for report in reports {
        let _ = write!(
            xml,
            "    <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\"",
            escaped(&report.file.display().to_string()),
            escaped(&report.title()),
            report.took.as_secs_f64(),
        );
        match &report.failure {
            None => xml.push_str("/>\n"),
            Some(failure) => {
                let first = failure.detail.lines().next().unwrap_or_default();
                let _ = write!(
                    xml,
                    ">\n      <failure message=\"{}\">{}</failure>\n    </testcase>\n",
                    escaped(&format!("line {}: {first}", failure.line)),
                    escaped(&failure.detail),
                );
            }
        }
    }
    xml.push_str("  </testsuite>\n</testsuites>\n");
    xml
}

/// Text for XML: the five characters that have meaning, and none that XML 1.0 forbids.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push('\t'),
            c if c.is_control() || matches!(c, '\u{FFFE}' | '\u{FFFF}') => out.push('\u{FFFD}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(failure: Option<&str>) -> RunReport {
        RunReport {
            file: PathBuf::from("scenarios/a.yaml"),
            name: "a <b> & \"c\"".to_owned(),
            run: Some((Mode::Nftables, FamilyRun::Ipv4)),
            took: Duration::from_millis(120),
            failure: failure.map(|detail| Failure { line: 7, detail: detail.to_owned() }),
        }
    }

    #[test]
    fn a_failure_shows_file_line_and_what_came() {
        assert_eq!(report(None).lines(), "ok   a <b> & \"c\" [nftables ipv4] 120 ms\n");
        let text = report(Some("expected x\nkernel  y")).lines();
        assert_eq!(text, "FAIL a <b> & \"c\" [nftables ipv4] scenarios/a.yaml:7\n     expected x\n     kernel  y\n");
    }

    #[test]
    fn the_summary_counts_every_run() {
        assert_eq!(summary(&[report(None), report(Some("x")), report(None)]), "2 passed, 1 failed");
        assert_eq!(summary(&[]), "0 passed, 0 failed");
    }

    #[test]
    fn junit_escapes_what_xml_forbids() {
        let xml = junit(&[report(None), report(Some("a\u{1}\n<b>"))]);
        assert!(xml.contains("tests=\"2\" failures=\"1\""), "{xml}");
        assert!(xml.contains("name=\"a &lt;b&gt; &amp; &quot;c&quot; [nftables ipv4]\" time=\"0.120\"/>"), "{xml}");
        assert!(xml.contains(">a\u{FFFD}&#10;&lt;b&gt;</failure>"), "{xml}");
    }
}
