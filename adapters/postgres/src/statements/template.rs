//! How the gaps of a statement are filled.
//!
//! A statement is a template with four kinds of marks:
//!
//! - A line that begins with `--` is a comment and is left out.
//! - `--: if flag`, `--: if not flag`, `--: else` and `--: end` keep or leave out the lines between them.
//! - `{name}` is replaced by a value that the caller gives, or by the fragment `fragments/name.sql`. `{name:argument}` is the
//!   fragment with the argument in place of its `{argument}`.
//! - `{schema}` and `{schema_text}` are replaced last, see [`Schema`](super::Schema), because a schema may have any name.

use std::fmt::Display;

use super::FRAGMENTS;
use crate::sabotage::Bug;

/// The flags that are set, and the values for the gaps of a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Filling {
    flags: Vec<&'static str>,
    values: Vec<(&'static str, String)>,
}

impl Filling {
    /// No flags and no values.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Sets the flag if the condition holds.
    pub(crate) fn when(mut self, flag: &'static str, condition: bool) -> Self {
        if condition {
            self.flags.push(flag);
        }
        self
    }

    /// Gives the value for a gap.
    pub(crate) fn with(mut self, name: &'static str, value: impl Display) -> Self {
        self.values.push((name, value.to_string()));
        self
    }

    /// Whether a flag is set. Some flags are bugs that the repository's own tests switch on.
    fn is_set(&self, flag: &str) -> bool {
        match flag {
            "ignores_fences" => Bug::Fencing.is_on(),
            "looks_for_dependants_too_early" => Bug::Unblocking.is_on(),
            "ignores_open_keys" => Bug::Deduplication.is_on(),
            "numbers_types_in_order" => Bug::Types.is_on(),
            flag => self.flags.contains(&flag),
        }
    }

    fn value(&self, name: &str) -> Option<&str> {
        let (_, value) = self.values.iter().find(|(known, _)| *known == name)?;
        Some(value)
    }
}

/// Fills the gaps of a template, except for those of the schema.
pub(crate) fn fill(template: &str, filling: &Filling) -> String {
    expand(&select(template, filling), filling)
}

/// The lines that are kept, without comments and indentation.
fn select(template: &str, filling: &Filling) -> String {
    // For each open section whether its lines are kept. A line is kept if all of them are.
    let mut sections: Vec<bool> = Vec::new();
    let mut lines: Vec<&str> = Vec::new();
    for line in template.lines().map(str::trim) {
        match line.strip_prefix("--:").map(str::trim) {
            Some("else") => {
                if let Some(kept) = sections.last_mut() {
                    *kept = !*kept;
                }
            }
            Some("end") => drop(sections.pop()),
            Some(condition) => {
                let flag = condition.strip_prefix("if ").unwrap_or(condition);
                sections.push(match flag.strip_prefix("not ") {
                    Some(flag) => !filling.is_set(flag),
                    None => filling.is_set(flag),
                });
            }
            None if line.is_empty() || line.starts_with("--") => {}
            None if sections.iter().all(|kept| *kept) => lines.push(line),
            None => {}
        }
    }
    lines.join("\n")
}

/// The text with values and fragments in place of their names.
fn expand(text: &str, filling: &Filling) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        expanded.push_str(&rest[..start]);
        let Some(end) = closing(&rest[start..]) else {
            break;
        };
        let (mark, name) = (&rest[start..=start + end], &rest[start + 1..start + end]);
        rest = &rest[start + end + 1..];
        let (name, argument) = name.split_once(':').unwrap_or((name, ""));
        if let Some(value) = filling.value(name) {
            expanded.push_str(value);
        } else if let Some((_, fragment)) = FRAGMENTS.iter().find(|(known, _)| *known == name) {
            let fragment = select(fragment, filling).replace("{argument}", argument);
            expanded.push_str(&expand(&fragment, filling));
        } else {
            expanded.push_str(mark);
        }
    }
    expanded.push_str(rest);
    expanded
}

/// Where the brace closes that a text begins with.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (position, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(position);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_go_and_sections_are_kept_by_their_flags() {
        let template =
            "-- A comment.\nSELECT 1\n--: if one\n, 2\n--: if not two\n, 3\n--: end\n--: else\n, 4\n--: end\n\n";
        assert_eq!(fill(template, &Filling::none()), "SELECT 1\n, 4");
        assert_eq!(fill(template, &Filling::none().when("one", true)), "SELECT 1\n, 2\n, 3");
        let both = Filling::none().when("one", true).when("two", true);
        assert_eq!(fill(template, &both), "SELECT 1\n, 2");
    }

    #[test]
    fn values_and_fragments_take_the_places_of_their_names() {
        let filling = Filling::none().with("limit", 7);
        let filled = fill("{clock} LIMIT {limit} {schema}", &filling);
        assert_eq!(filled, "(SELECT now FROM clock) LIMIT 7 {schema}");
        let filled = fill(
            "{types_exist:{ids}, {names}}",
            &filling.with("ids", "$1").with("names", "$2"),
        );
        assert!(filled.contains("unnest($1, $2)"), "{filled}");
    }

    #[test]
    fn a_value_is_not_searched_for_gaps() {
        let filled = fill("{name}", &Filling::none().with("name", "{clock}"));
        assert_eq!(filled, "{clock}");
    }
}
