//! The text of a page of metrics, in Prometheus's format of version 0.0.4.

use std::fmt::{Display, Write};

/// A page of metrics under construction.
#[derive(Debug, Default)]
pub struct MetricPage {
    text: String,
    /// Name of the current metric.
    name: &'static str,
}

impl MetricPage {
    /// Begins a metric of this type: counter, gauge or histogram. Its samples follow.
    pub fn begin(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Writes a sample of the current metric.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.part("", labels, value);
    }

    /// Writes a sample of the current metric under its name with this suffix.
    pub fn part(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let pairs: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        let labels = match &pairs[..] {
            [] => String::new(),
            pairs => format!("{{{}}}", pairs.join(",")),
        };
        let _ = writeln!(self.text, "{}{suffix}{labels} {value}", self.name);
    }

    /// Writes a gauge with one sample.
    pub fn gauge(&mut self, name: &'static str, help: &str, value: u64) {
        self.begin(name, "gauge", help);
        self.sample(&[], value);
    }

    /// Returns the text of the page.
    pub fn into_text(self) -> String {
        self.text
    }
}
