//! Prints results: a table for people, and one line of JSON.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::measure::{Cost, Figure, Results, Row, quantile, sorted};

pub(crate) fn print(results: &Results) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "\nsuite {}", results.suite)?;
    for (name, value) in &results.settings {
        writeln!(out, "  {name}: {value}")?;
    }
    writeln!(
        out,
        "\n| {:<42} | {:>10} | {:>10} | {:>10} | {:<8} | {:>7} | {:>8} | verbs per unit |",
        "case", "median", "min", "max", "unit", "CPU µs", "peak MB"
    )?;
    writeln!(
        out,
        "|{:-<44}|-----------:|-----------:|-----------:|----------|--------:|---------:|----------------|",
        ""
    )?;
    for row in &results.rows {
        let values = sorted(row.values.iter().copied());
        writeln!(
            out,
            "| {:<42} | {:>10} | {:>10} | {:>10} | {:<8} | {:>7} | {:>8} | {} |",
            row.name,
            digits(quantile(&values, 0.5)),
            digits(quantile(&values, 0.0)),
            digits(quantile(&values, 1.0)),
            row.unit,
            cost(row, |cost| cost.cpu_micros).map_or(String::new(), |cpu| format!("{cpu:.2}")),
            cost(row, |cost| cost.peak_megabytes).map_or(String::new(), |peak| format!("{peak:.0}")),
            verbs(row)
        )?;
    }
    writeln!(out, "\n{}", as_json(results))
}

/// For the process that runs the suite.
pub(crate) fn print_figures(figures: &[Figure]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(figures)?)
}

/// The median of a cost over the rounds.
fn cost(row: &Row, part: impl Fn(&Cost) -> Option<f64>) -> Option<f64> {
    let values = sorted(row.costs.iter().filter_map(part));
    (!values.is_empty()).then(|| quantile(&values, 0.5))
}

fn verbs(row: &Row) -> String {
    let counted = row.costs.iter().find_map(|cost| cost.verbs.as_ref());
    let counted = counted.into_iter().flatten();
    let texts: Vec<_> = counted.map(|(verb, count)| format!("{verb} {count:.3}")).collect();
    texts.join(", ")
}

/// Thousands with separators, small numbers with digits behind the point.
fn digits(value: f64) -> String {
    if value < 1_000.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn as_json(results: &Results) -> Value {
    let rows: Vec<_> = results.rows.iter().map(row_json).collect();
    let settings = results.settings.iter().map(|(name, value)| (*name, value.as_str()));
    json!({
        "suite": results.suite,
        "settings": settings.collect::<std::collections::BTreeMap<_, _>>(),
        "figures": rows,
    })
}

fn row_json(row: &Row) -> Value {
    let values = sorted(row.values.iter().copied());
    json!({
        "name": row.name,
        "unit": row.unit,
        "median": quantile(&values, 0.5),
        "min": quantile(&values, 0.0),
        "max": quantile(&values, 1.0),
        "cpu_micros": cost(row, |cost| cost.cpu_micros),
        "peak_megabytes": cost(row, |cost| cost.peak_megabytes),
        "verbs": row.costs.iter().find_map(|cost| cost.verbs.as_ref()),
    })
}
