//! Draws figures as SVG: panels side by side, lines through points, with the range over the rounds.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::measure::{Results, Row, quantile, sorted};

const PANEL: f64 = 420.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 75.0;
const COLOURS: [&str; 5] = ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df"];

/// A file with some panels.
pub(crate) struct Plot {
    pub(crate) file: &'static str,
    pub(crate) panels: Vec<Panel>,
}

/// One drawing. The horizontal axis is logarithmic, the other one begins at zero.
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    pub(crate) across: &'static str,
    pub(crate) up: &'static str,
    pub(crate) lines: Vec<Line>,
}

/// Points, each the figure of a name.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(f64, String)>,
}

/// Where a point lies, with the range over the rounds.
struct Point {
    across: f64,
    median: f64,
    low: f64,
    high: f64,
}

/// Writes all plots of a suite, and says where they are.
pub(crate) fn write(results: &Results, directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    for plot in &results.plots {
        let path = directory.join(plot.file);
        fs::write(&path, draw(plot, &results.rows))?;
        written.push(path);
    }
    Ok(written)
}

fn draw(plot: &Plot, rows: &[Row]) -> String {
    let width = PANEL * plot.panels.len() as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"11\" fill=\"#24292f\">\n\
         <rect width=\"{width}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
    );
    for (place, panel) in plot.panels.iter().enumerate() {
        draw_panel(&mut text, panel, rows, PANEL * place as f64);
    }
    text.push_str("</svg>\n");
    text
}

fn points(line: &Line, rows: &[Row]) -> Vec<Point> {
    let point = |(across, name): &(f64, String)| {
        let row = rows.iter().find(|row| row.name == *name)?;
        let values = sorted(row.values.values().copied());
        Some(Point {
            across: *across,
            median: quantile(&values, 0.5),
            low: quantile(&values, 0.0),
            high: quantile(&values, 1.0),
        })
    };
    line.points.iter().filter_map(point).collect()
}

fn draw_panel(text: &mut String, panel: &Panel, rows: &[Row], left: f64) {
    let lines: Vec<(&Line, Vec<Point>)> = panel.lines.iter().map(|line| (line, points(line, rows))).collect();
    let all = || lines.iter().flat_map(|(_, points)| points);
    let highest = all().map(|point| point.high).fold(0.0, f64::max);
    if highest <= 0.0 {
        return;
    }
    let step = nice_step(highest);
    let top = (highest / step).ceil() * step;
    let least = all().map(|point| point.across.ln()).fold(f64::INFINITY, f64::min);
    let most = all().map(|point| point.across.ln()).fold(f64::NEG_INFINITY, f64::max);
    let (inner, tall) = (PANEL - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let x = |across: f64| {
        let share = if most > least {
            (across.ln() - least) / (most - least)
        } else {
            0.5
        };
        left + LEFT + inner * (0.04 + 0.92 * share)
    };
    let y = |value: f64| TOP + tall * (1.0 - value / top);
    let _ = writeln!(
        text,
        "<text x=\"{}\" y=\"20\" font-size=\"13\" font-weight=\"bold\">{}</text>",
        left + LEFT,
        panel.title
    );
    let _ = writeln!(text, "<text x=\"{}\" y=\"34\">{}</text>", left + LEFT, panel.up);
    let mut mark = 0.0;
    while mark <= top * 1.001 {
        let (from, to, at) = (left + LEFT, left + PANEL - RIGHT, y(mark));
        let _ = writeln!(
            text,
            "<line x1=\"{from:.1}\" y1=\"{at:.1}\" x2=\"{to:.1}\" y2=\"{at:.1}\" stroke=\"#d0d7de\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            from - 6.0,
            at + 4.0,
            short(mark)
        );
        mark += step;
    }
    let mut marked: Vec<f64> = all().map(|point| point.across).collect();
    marked.sort_unstable_by(f64::total_cmp);
    marked.dedup();
    for across in marked {
        let (at, below) = (x(across), HEIGHT - BOTTOM + 15.0);
        let _ = writeln!(
            text,
            "<text x=\"{at:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{}</text>",
            short(across)
        );
    }
    let _ = writeln!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        left + LEFT + inner / 2.0,
        HEIGHT - BOTTOM + 30.0,
        panel.across
    );
    for (place, (line, points)) in lines.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        draw_line(text, points, colour, &x, &y);
        // Two names per row.
        let across = left + 15.0 + (place % 2) as f64 * (PANEL / 2.0);
        let below = HEIGHT - BOTTOM + 48.0 + (place / 2) as f64 * 14.0;
        let _ = writeln!(
            text,
            "<circle cx=\"{across:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{below:.1}\">{}</text>",
            below - 4.0,
            across + 8.0,
            line.name
        );
    }
}

fn draw_line(text: &mut String, points: &[Point], colour: &str, x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64) {
    let path: Vec<String> = points
        .iter()
        .map(|point| format!("{:.1},{:.1}", x(point.across), y(point.median)))
        .collect();
    let path = path.join(" ");
    let _ = writeln!(
        text,
        "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
    );
    for point in points {
        let across = x(point.across);
        let _ = writeln!(
            text,
            "<line x1=\"{across:.1}\" y1=\"{:.1}\" x2=\"{across:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>\
             <circle cx=\"{across:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/>",
            y(point.low),
            y(point.high),
            y(point.median)
        );
    }
}

/// So that there are about five marks.
fn nice_step(highest: f64) -> f64 {
    let rough = highest / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power);
    steps.into_iter().find(|step| *step >= rough).unwrap_or(rough)
}

fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e3 => format!("{}k", value / 1e3),
        value => format!("{value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_numbers() {
        for (highest, step) in [(4.9, 1.0), (23.0, 5.0), (31_000.0, 10_000.0), (99.0, 20.0)] {
            assert!(
                (nice_step(highest) - step).abs() < 1e-9,
                "{highest}: {}",
                nice_step(highest)
            );
        }
        assert_eq!(short(1_500_000.0), "1.5M");
        assert_eq!(short(200_000.0), "200k");
    }
}
