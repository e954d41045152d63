//! Prints results: tables for people, and one line of JSON.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::measure::{Cost, Limit, Ratio, Results, Row, quantile, sorted};

/// A column that has something to say about some rows only.
type Column = (&'static str, fn(&Row) -> String);

const COSTS: &[Column] = &[
    ("CPU µs", |row| number(row, |cost| cost.cpu_micros, 2)),
    ("peak MB", |row| number(row, |cost| cost.peak_megabytes, 0)),
    ("written B", |row| number(row, |cost| cost.written_bytes, 0)),
    ("transactions", |row| number(row, |cost| cost.transactions, 4)),
    ("statements", |row| number(row, |cost| cost.statements, 4)),
    ("WAL B", |row| number(row, |cost| cost.wal_bytes, 0)),
    ("connections", |row| number(row, |cost| cost.connections, 0)),
    ("pages", |row| number(row, |cost| cost.pages, 0)),
    ("rows read", |row| number(row, |cost| cost.rows, 0)),
    ("flushes", |row| number(row, |cost| cost.flushes, 4)),
    ("verbs per unit", verbs),
];

pub(crate) fn print(results: &Results) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "\nsuite {}", results.suite)?;
    for (name, value) in &results.settings {
        writeln!(out, "  {name}: {value}")?;
    }
    // What no row knows is left out.
    let known = |column: &&Column| results.rows.iter().any(|row| !column.1(row).is_empty());
    let costs: Vec<&Column> = COSTS.iter().filter(known).collect();
    let widest = results.rows.iter().map(|row| row.name.chars().count());
    let width = widest.max().unwrap_or_default().max(42);
    write!(
        out,
        "\n| {:<width$} | {:>10} | {:>10} | {:>10} | {:<8} |",
        "case", "median", "min", "max", "unit"
    )?;
    for (name, _) in &costs {
        write!(out, " {name:>8} |")?;
    }
    let dashes = width + 2;
    write!(
        out,
        "\n|{:-<dashes$}|-----------:|-----------:|-----------:|----------|",
        ""
    )?;
    for (name, _) in &costs {
        let dashes = name.chars().count().max(8) + 1;
        write!(out, "{:-<dashes$}:|", "")?;
    }
    writeln!(out)?;
    for row in &results.rows {
        let values = sorted(row.values.values().copied());
        write!(
            out,
            "| {:<width$} | {:>10} | {:>10} | {:>10} | {:<8} |",
            row.name,
            digits(quantile(&values, 0.5)),
            digits(quantile(&values, 0.0)),
            digits(quantile(&values, 1.0)),
            row.unit,
        )?;
        for (name, value) in &costs {
            let width = name.chars().count().max(8);
            write!(out, " {:>width$} |", value(row))?;
        }
        writeln!(out)?;
    }
    print_ratios(&mut out, results)?;
    print_limits(&mut out, results)?;
    for failure in &results.failures {
        writeln!(out, "\n{failure}")?;
    }
    writeln!(out, "\n{}", as_json(results))
}

fn print_ratios(out: &mut impl Write, results: &Results) -> io::Result<()> {
    let known: Vec<_> = results
        .ratios
        .iter()
        .filter_map(|ratio| ratio.values(&results.rows).map(|(values, best)| (ratio, values, best)))
        .collect();
    if known.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n| {:<50} | {:>7} | {:>7} | {:>7} | {:>7} | {:<7} | against |",
        "ratio, by round", "median", "min", "max", "wanted", ""
    )?;
    writeln!(
        out,
        "|{:-<52}|--------:|--------:|--------:|--------:|---------|---------|",
        ""
    )?;
    for (ratio, values, best) in known {
        let values = sorted(values);
        let median = quantile(&values, 0.5);
        writeln!(
            out,
            "| {:<50} | {median:>7.2} | {:>7.2} | {:>7.2} | {:>7} | {:<7} | {best} |",
            ratio.name,
            quantile(&values, 0.0),
            quantile(&values, 1.0),
            ratio.promise(),
            match ratio.is_reached(median) {
                Some(true) => "reached",
                Some(false) => "missed",
                None => "",
            },
        )?;
    }
    Ok(())
}

fn print_limits(out: &mut impl Write, results: &Results) -> io::Result<()> {
    let known: Vec<_> = results
        .limits
        .iter()
        .filter_map(|limit| Some((limit, limit.values(&results.rows)?)))
        .collect();
    if known.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n| {:<50} | {:>8} | {:>8} | {:>8} | {:>8} | {:<7} |",
        "limit", "median", "min", "max", "bound", ""
    )?;
    writeln!(
        out,
        "|{:-<52}|---------:|---------:|---------:|---------:|---------|",
        ""
    )?;
    for (limit, values) in known {
        let median = quantile(&values, 0.5);
        writeln!(
            out,
            "| {:<50} | {:>8} | {:>8} | {:>8} | {:>8} | {:<7} |",
            limit.name,
            fine_digits(median),
            fine_digits(quantile(&values, 0.0)),
            fine_digits(quantile(&values, 1.0)),
            match limit.at_least {
                true => format!(">= {}", fine_digits(limit.bound)),
                false => fine_digits(limit.bound),
            },
            if limit.is_kept(median) { "kept" } else { "broken" },
        )?;
    }
    Ok(())
}

/// The same as [`digits`] with more of them for numbers below one.
fn fine_digits(value: f64) -> String {
    match value < 1.0 {
        true => format!("{value:.4}"),
        false => digits(value),
    }
}

/// The median of a cost over the rounds.
fn cost(row: &Row, part: impl Fn(&Cost) -> Option<f64>) -> Option<f64> {
    let values = sorted(row.costs.iter().filter_map(part));
    (!values.is_empty()).then(|| quantile(&values, 0.5))
}

fn number(row: &Row, part: impl Fn(&Cost) -> Option<f64>, places: usize) -> String {
    cost(row, part).map_or(String::new(), |value| format!("{value:.places$}"))
}

fn verbs(row: &Row) -> String {
    let counted = row.costs.iter().find_map(|cost| cost.verbs.as_ref());
    let counted = counted.into_iter().flatten();
    let texts: Vec<_> = counted.map(|(verb, count)| format!("{verb} {count:.3}")).collect();
    texts.join(", ")
}

/// Thousands with separators, small numbers with digits behind the point.
fn digits(value: f64) -> String {
    if value < 10.0 {
        return format!("{value:.2}");
    }
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
    let ratios = results.ratios.iter().filter_map(|ratio| ratio_json(ratio, results));
    let limits = results.limits.iter().filter_map(|limit| limit_json(limit, results));
    let settings = results
        .settings
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    json!({
        "suite": results.suite,
        "settings": settings.collect::<std::collections::BTreeMap<_, _>>(),
        "figures": rows,
        "ratios": ratios.collect::<Vec<_>>(),
        "limits": limits.collect::<Vec<_>>(),
        "failures": results.failures,
    })
}

fn row_json(row: &Row) -> Value {
    let values = sorted(row.values.values().copied());
    json!({
        "name": row.name,
        "unit": row.unit,
        "median": quantile(&values, 0.5),
        "min": quantile(&values, 0.0),
        "max": quantile(&values, 1.0),
        "cpu_micros": cost(row, |cost| cost.cpu_micros),
        "peak_megabytes": cost(row, |cost| cost.peak_megabytes),
        "written_bytes": cost(row, |cost| cost.written_bytes),
        "transactions": cost(row, |cost| cost.transactions),
        "statements": cost(row, |cost| cost.statements),
        "wal_bytes": cost(row, |cost| cost.wal_bytes),
        "connections": cost(row, |cost| cost.connections),
        "pages": cost(row, |cost| cost.pages),
        "rows": cost(row, |cost| cost.rows),
        "flushes": cost(row, |cost| cost.flushes),
        "verbs": row.costs.iter().find_map(|cost| cost.verbs.as_ref()),
    })
}

fn ratio_json(ratio: &Ratio, results: &Results) -> Option<Value> {
    let (values, against) = ratio.values(&results.rows)?;
    let values = sorted(values);
    let median = quantile(&values, 0.5);
    Some(json!({
        "name": ratio.name,
        "of": ratio.of,
        "against": against,
        "median": median,
        "min": quantile(&values, 0.0),
        "max": quantile(&values, 1.0),
        "wanted": ratio.wanted,
        "reached": ratio.is_reached(median),
    }))
}

fn limit_json(limit: &Limit, results: &Results) -> Option<Value> {
    let values = limit.values(&results.rows)?;
    let median = quantile(&values, 0.5);
    Some(json!({
        "name": limit.name,
        "of": limit.of,
        "median": median,
        "min": quantile(&values, 0.0),
        "max": quantile(&values, 1.0),
        "bound": limit.bound,
        "at_least": limit.at_least,
        "kept": limit.is_kept(median),
    }))
}
