//! Pure. Prometheus' text format 0.0.4.

use std::fmt::Write;

/// A histogram: how many values at most as large as each bound, all of them, and their sum.
#[derive(Debug, Clone)]
pub(super) struct Histogram {
    bounds: Vec<f64>,
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    pub(super) fn new(bounds: &[f64]) -> Histogram {
        Histogram { bounds: bounds.to_vec(), counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// One that was counted elsewhere. `counts`: one more than bounds, each without those of the smaller bounds.
    pub(super) fn counted(bounds: &[f64], counts: Vec<u64>, sum: f64) -> Histogram {
        Histogram { bounds: bounds.to_vec(), counts, sum }
    }

    pub(super) fn observe(&mut self, value: f64) {
        let place = self.bounds.partition_point(|bound| *bound < value);
        self.counts[place] += 1;
        self.sum += value;
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

pub(super) struct Text(String);

impl Text {
    pub(super) fn new() -> Text {
        Text(String::new())
    }

    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("a String takes all");
    }

    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let before = if at == 0 { '{' } else { ',' };
            write!(self.0, "{before}{label}=\"{text}\"").expect("a String takes all");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        writeln!(self.0, " {value}").expect("a String takes all");
    }

    pub(super) fn histogram(&mut self, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            below += count;
            self.sample(&bucket, &[labels, &[("le", &bound.to_string())]].concat(), below as f64);
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), histogram.count() as f64);
        self.sample(&format!("{name}_sum"), labels, histogram.sum);
        self.sample(&format!("{name}_count"), labels, histogram.count() as f64);
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}
