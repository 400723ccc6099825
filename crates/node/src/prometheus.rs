//! Pure. Prometheus' text format 0.0.4.

use std::fmt::Write;

/// Counts of values up to each bound.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: Vec<f64>,
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    /// `bounds`: ascending.
    pub(crate) fn new(bounds: Vec<f64>) -> Histogram {
        Histogram { counts: vec![0; bounds.len()], bounds, count: 0, sum: 0.0 }
    }

    pub(crate) fn observe(&mut self, value: f64) {
        let first = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(first) {
            *count += 1;
        }
        self.count += 1;
        self.sum += value;
    }
}

/// A text under construction.
pub(crate) struct Text {
    text: String,
}

type Labels<'a> = [(&'a str, &'a str)];

impl Text {
    pub(crate) fn new() -> Text {
        Text { text: String::with_capacity(16 * 1024) }
    }

    /// Stands before the samples of a name.
    pub(crate) fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}.\n# TYPE {name} {kind}"));
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &Labels<'_>, value: f64) {
        self.line(format_args!("{name}{} {value}", Shown(labels, None)));
    }

    pub(crate) fn histogram(&mut self, name: &str, labels: &Labels<'_>, histogram: &Histogram) {
        let mut below = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            below += count;
            self.line(format_args!("{name}_bucket{} {below}", Shown(labels, Some(&bound.to_string()))));
        }
        self.line(format_args!("{name}_bucket{} {}", Shown(labels, Some("+Inf")), histogram.count));
        self.line(format_args!("{name}_sum{} {}", Shown(labels, None), histogram.sum));
        self.line(format_args!("{name}_count{} {}", Shown(labels, None), histogram.count));
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a String takes any text");
    }
}

/// Labels, and the bound of a bucket. Values here are our own words: none needs escaping.
struct Shown<'a>(&'a Labels<'a>, Option<&'a str>);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bound = self.1.map(|bound| ("le", bound));
        let mut separator = "{";
        for (label, value) in self.0.iter().copied().chain(bound) {
            write!(f, "{separator}{label}=\"{value}\"")?;
            separator = ",";
        }
        if separator == "," { f.write_str("}") } else { Ok(()) }
    }
}
