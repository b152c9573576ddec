//! Progress bars on the terminal.

use crate::report::grouped;
use crate::series::ScenarioProgress;
use indicatif::{ProgressBar, ProgressStyle};

/// Progress display of a scenario on standard error; empty if that is not a terminal.
#[derive(Debug, Default)]
pub struct Bars {
    shown: Option<(&'static str, ProgressBar)>,
}

impl Bars {
    /// Creates an empty display.
    pub fn new() -> Bars {
        Bars::default()
    }

    /// Shows this progress.
    pub fn show(&mut self, progress: ScenarioProgress) {
        match progress {
            ScenarioProgress::Loading { done, of } => self.count("loading", done, of),
            ScenarioProgress::Verifying { done, of } => self.count("reading back", done, of),
            ScenarioProgress::Serving { moved: false } => self.tick("serving"),
            ScenarioProgress::Moving => self.tick("moving"),
            ScenarioProgress::Recovering => self.tick("recovering a dead server"),
            ScenarioProgress::Recovered => self.tick("serving after recovery"),
            ScenarioProgress::Serving { moved: true } => self.tick("serving after the move"),
        }
    }

    /// Removes the bar.
    pub fn clear(&mut self) {
        if let Some((_, bar)) = self.shown.take() {
            bar.finish_and_clear();
        }
    }

    fn count(&mut self, name: &'static str, done: u64, of: u64) {
        let template = "  {prefix:<24}{bar:40} {percent:>3} %  {per_sec}";
        self.bar(name, || ProgressBar::new(of).with_style(style(template))).set_position(done);
        if done >= of {
            self.clear();
        }
    }

    fn tick(&mut self, name: &'static str) {
        let template = "  {prefix:<24}{elapsed}";
        self.bar(name, || ProgressBar::new_spinner().with_style(style(template))).tick();
    }

    fn bar(&mut self, name: &'static str, make: impl FnOnce() -> ProgressBar) -> &ProgressBar {
        if self.shown.as_ref().is_none_or(|(shown, _)| *shown != name) {
            self.clear();
        }
        &self.shown.get_or_insert_with(|| (name, make().with_prefix(name))).1
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    match ProgressStyle::with_template(template) {
        Ok(style) => style.with_key(
            "per_sec",
            |state: &indicatif::ProgressState, out: &mut dyn std::fmt::Write| {
                let _ = write!(out, "{} records/s", grouped(state.per_sec() as u64));
            },
        ),
        Err(error) => unreachable!("a constant template: {error}"),
    }
}
