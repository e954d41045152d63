//! Collects every mistake, and the pieces that messages are made of.

use std::fmt::Display;

use proc_macro2::{Span, TokenStream};

/// The mistakes found so far, each with the variant that it belongs to.
#[derive(Default)]
pub(crate) struct Problems {
    found: Vec<(usize, syn::Error)>,
    variant: usize,
}

impl Problems {
    /// What is reported from here on belongs to this variant; messages come out in the order of the variants,
    /// whichever stage found them.
    pub(crate) fn on_variant(&mut self, index: usize) {
        self.variant = index;
    }

    pub(crate) fn add(&mut self, span: Span, message: impl Display) {
        self.add_error(syn::Error::new(span, message));
    }

    pub(crate) fn add_error(&mut self, error: syn::Error) {
        self.found.push((self.variant, error));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub(crate) fn into_compile_errors(mut self) -> TokenStream {
        self.found.sort_by_key(|(variant, _)| *variant);
        self.found.iter().map(|(_, error)| error.to_compile_error()).collect()
    }
}

/// `` `a`, `b` and `c` ``.
pub(crate) fn quoted(names: impl IntoIterator<Item = impl Display>) -> String {
    let mut names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match names.pop() {
        None => "none".into(),
        Some(last) if names.is_empty() => last,
        Some(last) => format!("{} and {last}", names.join(", ")),
    }
}

/// The candidate that a misspelt name most likely means.
pub(crate) fn closest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = name.chars().count().div_ceil(3);
    candidates
        .into_iter()
        .map(|candidate| (distance(&name.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's: how many characters must be added, removed or replaced.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<_> = right.chars().collect();
    let mut row: Vec<_> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn the_closest_name_must_be_close() {
        assert_eq!(closest("SendWelcom", ["SyncCrm", "SendWelcome"]), Some("SendWelcome"));
        assert_eq!(closest("sendwelcome", ["SendWelcome"]), Some("SendWelcome"));
        assert_eq!(closest("Unrelated", ["SyncCrm", "SendWelcome"]), None);
    }

    #[test]
    fn lists_read_as_sentences() {
        assert_eq!(quoted(Vec::<&str>::new()), "none");
        assert_eq!(quoted(["a"]), "`a`");
        assert_eq!(quoted(["a", "b", "c"]), "`a`, `b` and `c`");
    }
}
