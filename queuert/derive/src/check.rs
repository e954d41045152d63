//! The rules that an enum of job types must keep, each reported where it is broken.

use quote::format_ident;
use syn::spanned::Spanned;
use syn::{Ident, Path, Type};

use crate::attribute::Output;
use crate::diagnostics::{Problems, closest, quoted};
use crate::naming::type_text;
use crate::parse::{Types, Variant, single_ident};
use crate::reach::Graph;

/// Reports every broken rule; returns the continuations that could be resolved.
pub(crate) fn check(types: &Types, problems: &mut Problems) -> Graph {
    let mut graph = Graph { next: Vec::new() };
    let mut uncertain = Vec::new();
    for (index, variant) in types.variants.iter().enumerate() {
        problems.on_variant(index);
        let resolved = continuations(types, variant, problems);
        graph.next.push(resolved.next);
        uncertain.push(resolved.uncertain);
        unique_name(&types.variants[..index], variant, problems);
        blockers_are_entries(types, variant, problems);
        goes_somewhere(variant, problems);
    }
    every_type_is_reached(types, &graph, &uncertain, problems);
    every_chain_can_end(types, &graph, &uncertain, problems);
    generated_names_are_free(types, &graph, problems);
    graph
}

/// The ends that a chain which starts with the variant can get to, in the order of the variants, with their outputs.
pub(crate) fn ends<'a>(types: &'a Types, graph: &Graph, entry: usize) -> Vec<(usize, &'a Type)> {
    let reached = graph.reachable([entry]);
    types
        .variants
        .iter()
        .enumerate()
        .filter(|(index, variant)| reached[*index] && variant.input.is_some())
        .filter_map(|(index, variant)| match &variant.settings.output {
            Output::Type(ty) => Some((index, &**ty)),
            Output::None | Output::Unreadable => None,
        })
        .collect()
}

/// Whether all ends finish with the same type, as written.
pub(crate) fn share_one_type(ends: &[(usize, &Type)]) -> bool {
    let mut texts = ends.iter().map(|(_, ty)| type_text(ty));
    let first = texts.next();
    texts.all(|text| Some(text) == first)
}

struct Continuations {
    next: Vec<usize>,
    /// Not all could be resolved, so a chain may get anywhere from here, for all that is known.
    uncertain: bool,
}

fn continuations(types: &Types, variant: &Variant, problems: &mut Problems) -> Continuations {
    let mut resolved = Continuations {
        next: Vec::new(),
        uncertain: variant.settings.continues_unreadable,
    };
    for path in &variant.settings.continues {
        let meant = match path.get_ident().and_then(|ident| types.position(ident)) {
            Some(index) if resolved.next.contains(&index) => {
                problems.add(
                    path.span(),
                    format!(
                        "`{}` continues with `{}` twice: name it once",
                        variant.ident,
                        type_text(path)
                    ),
                );
                continue;
            }
            Some(index) => Some(index),
            None => {
                let meant = likely_meant(types, path);
                problems.add(path.span(), unknown_variant(types, path, meant));
                meant
            }
        };
        match meant {
            Some(index) if !resolved.next.contains(&index) => resolved.next.push(index),
            Some(_) => {}
            None => resolved.uncertain = true,
        }
    }
    resolved
}

fn unknown_variant(types: &Types, path: &Path, meant: Option<usize>) -> String {
    let name = type_text(path);
    let suggestion = meant
        .map(|index| format!(" (did you mean `{}`?)", types.variants[index].ident))
        .unwrap_or_default();
    let variants = quoted(types.variants.iter().map(|variant| &variant.ident));
    let plural = if types.variants.len() == 1 {
        "variant is"
    } else {
        "variants are"
    };
    format!(
        "`{}` has no variant `{name}`{suggestion}: its {plural} {variants}",
        types.ident
    )
}

/// The variant that a wrong name in `continues` stands for: one that is spelt like it, or that wraps a struct of that
/// name.
fn likely_meant(types: &Types, path: &Path) -> Option<usize> {
    let last = &path.segments.last()?.ident;
    let position = |name: &str| types.variants.iter().position(|variant| variant.ident == name);
    let wraps = |variant: &Variant| variant.input.as_ref().and_then(single_ident) == Some(last);
    types
        .position(last)
        .or_else(|| types.variants.iter().position(wraps))
        .or_else(|| {
            let names: Vec<_> = types.variants.iter().map(|variant| variant.ident.to_string()).collect();
            closest(&last.to_string(), names.iter().map(String::as_str)).and_then(position)
        })
}

fn unique_name(before: &[Variant], variant: &Variant, problems: &mut Problems) {
    let name = &variant.name;
    if let Some(other) = before.iter().find(|other| other.name.value == name.value) {
        problems.add(
            name.span,
            format!(
                "`{}` and `{}` are both named `{}`, and jobs are stored under that name: give one of them another with \
                 `#[job(name = \"..\")]`",
                other.ident, variant.ident, name.value
            ),
        );
    }
}

fn blockers_are_entries(types: &Types, variant: &Variant, problems: &mut Problems) {
    for ty in variant.settings.blockers.types() {
        let Some(blocker) = types.named_by(ty).map(|index| &types.variants[index]) else {
            continue;
        };
        if blocker.settings.entry.is_none() {
            problems.add(
                ty.span(),
                format!(
                    "`{}` cannot wait for `{}`: a blocker is a whole chain, and no chain starts with `{}`; name an entry \
                     (of `{}`: {}), or mark `{}` with `#[job(entry)]`",
                    variant.ident,
                    blocker.ident,
                    blocker.ident,
                    types.ident,
                    quoted(types.entries()),
                    blocker.ident,
                ),
            );
        }
    }
}

fn continues_somewhere(variant: &Variant) -> bool {
    variant.settings.continues_unreadable || !variant.settings.continues.is_empty()
}

fn goes_somewhere(variant: &Variant, problems: &mut Problems) {
    if matches!(variant.settings.output, Output::None) && !continues_somewhere(variant) {
        problems.add(
            variant.ident.span(),
            format!(
                "`{}` neither finishes its chain nor continues it: add `output = Type` to its `#[job(..)]` (`output = ()` if \
                 there is nothing to tell), or `continues = [..]`",
                variant.ident
            ),
        );
    }
}

fn every_type_is_reached(types: &Types, graph: &Graph, uncertain: &[bool], problems: &mut Problems) {
    let entries: Vec<_> = (0..types.variants.len())
        .filter(|&index| types.variants[index].settings.entry.is_some())
        .collect();
    if entries.is_empty() {
        if !types.variants.is_empty() {
            problems.on_variant(0);
            problems.add(
                types.ident.span(),
                format!(
                    "`{}` has no entry, so no chain could ever start: mark the variants that chains start with, such as \
                     `{}`, with `#[job(entry)]`",
                    types.ident, types.variants[0].ident
                ),
            );
        }
        return;
    }
    let reached = graph.reachable(entries);
    // Once a chain may get anywhere, nothing is certainly out of reach.
    if reached
        .iter()
        .zip(uncertain)
        .any(|(reached, uncertain)| *reached && *uncertain)
    {
        return;
    }
    let mut reported = vec![false; reached.len()];
    for index in (0..reached.len()).filter(|index| !reached[*index]) {
        let follow = graph.reachable([index]);
        let lead_here = graph.can_reach([index]);
        // Only the first of those that follow one another: the rest is reached when it is.
        let first = (0..reached.len()).all(|other| !lead_here[other] || follow[other]);
        if !first || std::mem::replace(&mut reported[index], true) {
            continue;
        }
        let followers: Vec<_> = (0..reached.len())
            .filter(|&other| other != index && follow[other] && !reached[other])
            .collect();
        for &follower in &followers {
            reported[follower] = true;
        }
        let ident = &types.variants[index].ident;
        let also = if followers.is_empty() {
            String::new()
        } else {
            let names = quoted(followers.iter().map(|&follower| &types.variants[follower].ident));
            format!(" (nor to {names} behind it)")
        };
        problems.on_variant(index);
        problems.add(
            ident.span(),
            format!(
                "no entry leads to `{ident}`{also}: mark it with `#[job(entry)]`, or add it to `continues` of a job type that \
                 chains get to"
            ),
        );
    }
}

fn every_chain_can_end(types: &Types, graph: &Graph, uncertain: &[bool], problems: &mut Problems) {
    let ends = types.variants.iter().enumerate().filter_map(|(index, variant)| {
        // A job type that goes nowhere is reported as such; chains that get to it need no message of their own.
        let ends = !matches!(variant.settings.output, Output::None) || !continues_somewhere(variant);
        (ends || uncertain[index]).then_some(index)
    });
    let can_end = graph.can_reach(ends);
    let mut reported = vec![false; can_end.len()];
    for index in 0..can_end.len() {
        let follow = graph.reachable([index]);
        let lead_here = graph.can_reach([index]);
        // In the last loop, the one that nothing leaves: a mistake there is the reason for all that lead to it.
        let last = follow.iter().zip(&lead_here).all(|(follows, leads)| !follows || *leads);
        if can_end[index] || reported[index] || !last {
            continue;
        }
        for (reported, follows) in reported.iter_mut().zip(&follow) {
            *reported |= follows;
        }
        let ident = &types.variants[index].ident;
        let path: Vec<_> = graph
            .loop_through(index)
            .unwrap_or_default()
            .into_iter()
            .map(|index| format!("`{}`", types.variants[index].ident))
            .collect();
        let fix = match follow.iter().filter(|follows| **follows).count() {
            1 => format!("add `output = Type` to `{ident}`, or let it also continue with a job type that ends"),
            _ => "add `output = Type` to one of them, or let one continue with a job type that ends".into(),
        };
        problems.on_variant(index);
        problems.add(
            ident.span(),
            format!(
                "a chain that gets to `{ident}` can never end, it goes round forever: {}; {fix}",
                path.join(" -> ")
            ),
        );
    }
}

/// The enum of attempts.
pub(crate) fn attempt_name(types: &Types) -> Ident {
    format_ident!("{}Attempt", types.ident)
}

/// The enum of outputs of a chain whose ends differ.
pub(crate) fn output_name(entry: &Variant) -> Ident {
    format_ident!("{}Output", entry.ident)
}

/// Without this the compiler says that a name is defined twice, but not by whom.
fn generated_names_are_free(types: &Types, graph: &Graph, problems: &mut Problems) {
    let mut generated = vec![attempt_name(types)];
    for (index, variant) in types.variants.iter().enumerate() {
        if variant.settings.entry.is_some() && !share_one_type(&ends(types, graph, index)) {
            generated.push(output_name(variant));
        }
    }
    for (index, variant) in types.variants.iter().enumerate() {
        problems.on_variant(index);
        let output = match &variant.settings.output {
            Output::Type(ty) => Some(&**ty),
            Output::None | Output::Unreadable => None,
        };
        for ident in [variant.input.as_ref(), output]
            .into_iter()
            .flatten()
            .filter_map(single_ident)
        {
            if generated.contains(ident) {
                problems.add(
                    ident.span(),
                    format!(
                        "`#[derive(JobTypes)]` makes an enum named `{ident}` beside `{}`: rename yours",
                        types.ident
                    ),
                );
            }
        }
    }
}
