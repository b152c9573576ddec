//! Drawing of a timeline: throughput above, latencies on a logarithmic scale below, events shaded
//! or marked.
//!
//! The drawing is SVG, which every browser shows and converts.

use crate::timeline::Point;
use anyhow::{Context, Result};
use std::fmt::Write;
use std::path::Path;

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 680.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = WIDTH - 36.0;
/// Top and bottom of the two panels.
const THROUGHPUT: (f64, f64) = (128.0, 312.0);
const LATENCY: (f64, f64) = (366.0, 620.0);

const INK: &str = "#1f2933";
const FAINT_INK: &str = "#66717d";
const GRID: &str = "#e4e8ec";
const SHADE: &str = "#f6c344";
const MARK: &str = "#8a1c1c";
const AREA: &str = "#2f6fab";
/// Color of each line of the lower panel: p50, p99, p99.9.
const LINES: [(&str, &str); 3] = [("p50", "#3a9d5d"), ("p99", "#e07b28"), ("p99.9", "#c0392b")];

/// Content of a drawing.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// First line.
    pub title: String,
    /// Second line, smaller.
    pub subtitle: String,
    /// Result, on the right of the first line.
    pub verdict: String,
    /// Points of the timeline, in order.
    pub points: Vec<Point>,
    /// Begin and end of the shaded event in seconds, and its label.
    pub shaded: Option<(f64, f64, String)>,
    /// Marked moments in seconds with their labels, in order.
    pub marks: Vec<(f64, String)>,
}

impl Drawing {
    /// Removes everything before this second, which becomes the origin.
    pub fn starting_at(mut self, second: f64) -> Drawing {
        // Rounding decides about the point around the cut.
        self.points.retain(|point| point.second > second - 0.05);
        let origin = self.points.first().map_or(0.0, |point| point.second);
        for point in &mut self.points {
            point.second -= origin;
        }
        if let Some((from, until, _)) = &mut self.shaded {
            *from -= origin;
            *until -= origin;
        }
        for (second, _) in &mut self.marks {
            *second -= origin;
        }
        self
    }

    /// Returns the drawing as SVG.
    pub fn svg(&self) -> String {
        let mut out = String::new();
        let _ = write!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             font-family=\"Ubuntu, 'Segoe UI', Helvetica, Arial, sans-serif\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"10\" fill=\"#ffffff\"/>\n"
        );
        text(&mut out, LEFT, 44.0, (24.0, INK, "start"), &self.title);
        text(&mut out, LEFT, 72.0, (15.0, FAINT_INK, "start"), &self.subtitle);
        text(&mut out, RIGHT, 44.0, (16.0, INK, "end"), &self.verdict);
        let time = self.time_axis();
        self.shade(&mut out, &time);
        self.throughput(&mut out, &time);
        self.latency(&mut out, &time);
        self.mark(&mut out, &time);
        for tick in &time.ticks {
            let (x, y) = (time.at(*tick), LATENCY.1 + 22.0);
            text(&mut out, x, y, (13.0, FAINT_INK, "middle"), &short(*tick));
        }
        let (middle, below) = ((LEFT + RIGHT) / 2.0, LATENCY.1 + 46.0);
        text(&mut out, middle, below, (13.0, FAINT_INK, "middle"), "seconds");
        out.push_str("</svg>\n");
        out
    }

    /// Writes `path` with the extension `svg`.
    pub fn save(&self, path: &Path) -> Result<()> {
        write(path, "svg", self.svg().as_bytes())
    }

    fn time_axis(&self) -> Axis {
        let width = match &self.points[..] {
            [first, second, ..] => second.second - first.second,
            _ => 1.0,
        };
        let last = self.points.last().map_or(1.0, |point| point.second + width);
        Axis::linear((0.0, last), (LEFT, RIGHT), 10)
    }

    fn shade(&self, out: &mut String, time: &Axis) {
        let Some((from, until, label)) = &self.shaded else { return };
        let (left, right) = (time.at(*from), time.at(*until));
        for (top, bottom) in [THROUGHPUT, LATENCY] {
            let _ = writeln!(
                out,
                "<rect x=\"{left:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{}\" fill=\"{SHADE}\" \
                 fill-opacity=\"0.35\"/>",
                (right - left).max(1.5),
                bottom - top,
            );
        }
        let half = 4.0 * label.len() as f64;
        let center = ((left + right) / 2.0).clamp(LEFT + half, RIGHT - half);
        text(out, center, THROUGHPUT.0 - 10.0, (14.0, "#8a6100", "middle"), label);
    }

    /// Draws the marks as lines through both panels. The labels are between the panels, each in
    /// its own row, so that moments close to each other stay distinct.
    fn mark(&self, out: &mut String, time: &Axis) {
        for (row, (second, label)) in self.marks.iter().enumerate() {
            let x = time.at(*second);
            for (top, bottom) in [THROUGHPUT, LATENCY] {
                let _ = writeln!(
                    out,
                    "<path d=\"M{x:.1},{top}V{bottom}\" stroke=\"{MARK}\" stroke-width=\"1.2\" \
                     stroke-dasharray=\"4 3\"/>"
                );
            }
            // The first label has room on its left.
            let y = THROUGHPUT.1 + 19.0 + 17.0 * row.saturating_sub(1) as f64;
            let is_left = row == 0 || x > RIGHT - 220.0;
            let (x, anchor) = if is_left { (x - 6.0, "end") } else { (x + 6.0, "start") };
            text(out, x, y, (13.0, MARK, anchor), label);
        }
    }

    fn throughput(&self, out: &mut String, time: &Axis) {
        let highest = self.points.iter().map(|point| point.throughput).fold(1.0, f64::max);
        let axis = Axis::linear((0.0, highest * 1.08), (THROUGHPUT.1, THROUGHPUT.0), 4);
        axis.grid(out, thousands);
        panel_title(out, THROUGHPUT.0, "requests answered per second");
        let Some(last) = self.points.last() else { return };
        let mut area = format!("M{:.1},{:.1}", time.at(0.0), axis.at(0.0));
        let mut line = String::new();
        let width = time.ticks_end_width(&self.points);
        for point in &self.points {
            let (left, right) = (time.at(point.second), time.at(point.second + width));
            let height = axis.at(point.throughput);
            let _ = write!(area, "L{left:.1},{height:.1}L{right:.1},{height:.1}");
            let start = if line.is_empty() { 'M' } else { 'L' };
            let _ = write!(line, "{start}{left:.1},{height:.1}L{right:.1},{height:.1}");
        }
        let end = time.at(last.second + width);
        let _ = writeln!(
            out,
            "<path d=\"{area}L{end:.1},{:.1}Z\" fill=\"{AREA}\" fill-opacity=\"0.18\"/>\n\
             <path d=\"{line}\" fill=\"none\" stroke=\"{AREA}\" stroke-width=\"1.8\"/>",
            axis.at(0.0),
        );
    }

    fn latency(&self, out: &mut String, time: &Axis) {
        let seen = self.points.iter().filter(|point| point.latency.count > 0);
        let (lowest, highest) = seen.fold((1.0f64, 1.0f64), |(low, high), point| {
            (low.min(point.latency.p50), high.max(point.latency.p99_9))
        });
        let axis = Axis::decades(lowest, highest, (LATENCY.1, LATENCY.0));
        axis.grid(out, milliseconds);
        panel_title(out, LATENCY.0, "latency from the intended start, per 100 ms");
        let middle = time.ticks_end_width(&self.points) / 2.0;
        for (position, (name, color)) in LINES.iter().enumerate() {
            let mut path = String::new();
            let mut is_down = false;
            for point in &self.points {
                if point.latency.count == 0 {
                    is_down = false;
                    continue;
                }
                let value = [point.latency.p50, point.latency.p99, point.latency.p99_9][position];
                let start = if is_down { 'L' } else { 'M' };
                let (x, y) = (time.at(point.second + middle), axis.at(value));
                let _ = write!(path, "{start}{x:.1},{y:.1}");
                is_down = true;
            }
            let _ = writeln!(
                out,
                "<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" \
                 stroke-linejoin=\"round\"/>"
            );
            let x = RIGHT - 190.0 + 66.0 * position as f64;
            let y = LATENCY.0 - 12.0;
            let _ = writeln!(
                out,
                "<path d=\"M{x},{:.1}h18\" stroke=\"{color}\" stroke-width=\"3\"/>",
                y - 4.5
            );
            text(out, x + 24.0, y, (14.0, INK, "start"), name);
        }
    }
}

/// Writes a file with this extension.
pub(crate) fn write(path: &Path, extension: &str, content: &[u8]) -> Result<()> {
    let path = path.with_extension(extension);
    std::fs::write(&path, content).with_context(|| format!("writing {}", path.display()))
}

/// Mapping of values to positions, with the values of the grid lines.
struct Axis {
    values: (f64, f64),
    places: (f64, f64),
    is_logarithmic: bool,
    ticks: Vec<f64>,
}

impl Axis {
    /// Creates a linear axis with at most about `ticks` round values.
    fn linear(values: (f64, f64), places: (f64, f64), ticks: usize) -> Axis {
        let raw = (values.1 - values.0) / ticks as f64;
        let power = 10f64.powf(raw.log10().floor());
        let rounded = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * power >= raw);
        let step = rounded.unwrap_or(10.0) * power;
        let count = (values.1 / step).floor() as usize;
        let ticks = (0..=count).map(|number| number as f64 * step).collect();
        Axis { values, places, is_logarithmic: false, ticks }
    }

    /// Creates a logarithmic axis of whole decades around these values, at least two.
    fn decades(lowest: f64, highest: f64, places: (f64, f64)) -> Axis {
        let first = lowest.max(1e-3).log10().floor() as i32;
        let last = (highest.log10().ceil() as i32).max(first + 2);
        let ticks = (first..=last).map(|power| 10f64.powi(power)).collect();
        let values = (f64::from(first), f64::from(last));
        Axis { values, places, is_logarithmic: true, ticks }
    }

    fn at(&self, value: f64) -> f64 {
        let value = if self.is_logarithmic { value.max(1e-6).log10() } else { value };
        let share = (value - self.values.0) / (self.values.1 - self.values.0);
        self.places.0 + share.clamp(0.0, 1.0) * (self.places.1 - self.places.0)
    }

    /// Draws horizontal grid lines with their values.
    fn grid(&self, out: &mut String, name: fn(f64) -> String) {
        for &tick in &self.ticks {
            let y = self.at(tick);
            let _ = writeln!(
                out,
                "<path d=\"M{LEFT},{y:.1}H{RIGHT}\" stroke=\"{GRID}\" stroke-width=\"1\"/>"
            );
            text(out, LEFT - 10.0, y + 4.5, (13.0, FAINT_INK, "end"), &name(tick));
        }
    }

    /// Returns the width of one point of a timeline, in the unit of this axis.
    fn ticks_end_width(&self, points: &[Point]) -> f64 {
        self.values.1 / points.len().max(1) as f64
    }
}

fn panel_title(out: &mut String, top: f64, title: &str) {
    text(out, LEFT, top - 12.0, (14.0, INK, "start"), title);
}

/// Writes text at a position; `style` is size, color and anchor.
fn text(out: &mut String, x: f64, y: f64, style: (f64, &str, &str), content: &str) {
    let (size, color, anchor) = style;
    let content = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{color}\" \
         text-anchor=\"{anchor}\">{content}</text>"
    );
}

/// Formats a number without trailing zeros.
fn short(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn thousands(number: f64) -> String {
    if number >= 1e6 {
        format!("{} M", short(number / 1e6))
    } else if number >= 1e3 {
        format!("{} k", short(number / 1e3))
    } else {
        short(number)
    }
}

fn milliseconds(number: f64) -> String {
    if number >= 1e3 {
        format!("{} s", short(number / 1e3))
    } else if number < 0.9 {
        format!("{} us", short(number * 1e3))
    } else {
        format!("{} ms", short(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Percentiles;

    fn points() -> Vec<Point> {
        let latency =
            |p50| Percentiles { count: 10, p50, p99: 10.0 * p50, p99_9: 40.0 * p50, max: 9.0 };
        (0..50)
            .map(|position| Point {
                second: f64::from(position) / 10.0,
                throughput: 30_000.0,
                latency: latency(0.05 + 0.001 * f64::from(position)),
                errors: 0,
                redirects: 0,
            })
            .collect()
    }

    #[test]
    fn a_drawing_becomes_svg() {
        let points = points();
        let drawing = Drawing {
            title: "30,000 <requests> & more".to_string(),
            subtitle: String::new(),
            verdict: "nothing lost".to_string(),
            points,
            shaded: Some((2.0, 2.4, "325 MB moved".to_string())),
            marks: vec![(2.0, "killed".to_string()), (2.2, "served again".to_string())],
        };
        let svg = drawing.svg();
        assert!(svg.contains("30,000 &lt;requests&gt; &amp; more"));
        assert_eq!(svg.matches("<path").count(), svg.matches("d=\"M").count());
    }

    #[test]
    fn a_run_without_answers_can_be_drawn() {
        let drawing = Drawing {
            title: String::new(),
            subtitle: String::new(),
            verdict: String::new(),
            points: Vec::new(),
            shaded: None,
            marks: Vec::new(),
        };
        let svg = drawing.starting_at(1.0).svg();
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }

    #[test]
    fn what_is_left_out_moves_everything_to_the_left() {
        let drawing = Drawing {
            title: String::new(),
            subtitle: String::new(),
            verdict: String::new(),
            points: points(),
            shaded: Some((2.0, 2.4, String::new())),
            marks: vec![(2.2, String::new())],
        };
        let drawing = drawing.starting_at(1.02);
        assert_eq!(drawing.points.len(), 40);
        assert_eq!(drawing.points[0].second, 0.0);
        let (from, until, _) = drawing.shaded.unwrap();
        assert!((from - 1.0).abs() < 1e-9 && (until - 1.4).abs() < 1e-9);
        assert!((drawing.marks[0].0 - 1.2).abs() < 1e-9);
    }

    #[test]
    fn axes_have_round_values_and_whole_decades() {
        assert_eq!(Axis::linear((0.0, 33_000.0), (0.0, 1.0), 4).ticks.len(), 4);
        assert_eq!(Axis::decades(0.06, 12.0, (0.0, 1.0)).ticks, [0.01, 0.1, 1.0, 10.0, 100.0]);
        assert_eq!(milliseconds(0.1), "100 us");
        assert_eq!(thousands(25_000.0), "25 k");
    }
}
