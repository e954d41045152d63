//! `key`, `key = ..` and `key(..)` separated by commas.

use proc_macro2::{TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::spanned::Spanned;
use syn::{Attribute, Ident, Meta, Result, Token, parenthesized, token};

use crate::diagnostics::{Problems, closest, quoted};

/// The contents of every `#[job(..)]`.
pub(super) fn job_attributes(attributes: &[Attribute], problems: &mut Problems) -> Vec<TokenStream> {
    let mut found = Vec::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("job")) {
        match &attribute.meta {
            Meta::List(list) => found.push(list.tokens.clone()),
            other => problems.add(
                other.span(),
                "settings go in parentheses: `#[job(entry, output = ())]`, say",
            ),
        }
    }
    found
}

pub(super) fn parenthesised(input: ParseStream<'_>, example: &str) -> Result<TokenStream> {
    if !input.peek(token::Paren) {
        return Err(syn::Error::new(input.span(), format!("write `{example}`")));
    }
    let content;
    parenthesized!(content in input);
    content.parse()
}

pub(super) type ReadValue<'a> = dyn FnMut(&Ident, ParseStream<'_>, &mut Problems) -> Result<()> + 'a;

/// Reads `key`, `key = ..` and `key(..)` separated by commas; after a mistake it goes on behind the next comma.
pub(super) fn each_key(
    tokens: TokenStream,
    place: &str,
    accepted: &[&str],
    seen: &mut Vec<String>,
    problems: &mut Problems,
    read: &mut ReadValue<'_>,
) {
    let parser = |input: ParseStream<'_>| -> Result<()> {
        while !input.is_empty() {
            if let Err(error) = one_key(input, place, accepted, seen, problems, read) {
                problems.add_error(error);
                skip_to_comma(input)?;
            }
        }
        Ok(())
    };
    if let Err(error) = parser.parse2(tokens) {
        problems.add_error(error);
    }
}

fn one_key(
    input: ParseStream<'_>,
    place: &str,
    accepted: &[&str],
    seen: &mut Vec<String>,
    problems: &mut Problems,
    read: &mut ReadValue<'_>,
) -> Result<()> {
    let key = input.call(Ident::parse_any)?;
    let name = key.to_string();
    if !accepted.contains(&name.as_str()) {
        let suggestion = closest(&name, accepted.iter().copied())
            .map(|accepted| format!(" (did you mean `{accepted}`?)"))
            .unwrap_or_default();
        return Err(syn::Error::new(
            key.span(),
            format!("{place} has no `{name}`{suggestion}: it accepts {}", quoted(accepted)),
        ));
    }
    if seen.contains(&name) {
        return Err(syn::Error::new(
            key.span(),
            format!("`{name}` is given twice: keep one"),
        ));
    }
    seen.push(name.clone());
    read(&key, input, problems)?;
    if !input.is_empty() {
        input
            .parse::<Token![,]>()
            .map_err(|error| syn::Error::new(error.span(), format!("expected `,` after `{name}`")))?;
    }
    Ok(())
}

fn skip_to_comma(input: ParseStream<'_>) -> Result<()> {
    while !input.is_empty() {
        if input.parse::<Option<Token![,]>>()?.is_some() {
            break;
        }
        input.parse::<TokenTree>()?;
    }
    Ok(())
}
