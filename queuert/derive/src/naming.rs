//! Names of job types, and types as text.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;

/// `SendHTTPRequest2` becomes `send-http-request2`: a word begins at a capital after a small letter or digit, and at
/// the last capital of a run that a small letter follows.
pub(crate) fn kebab_case(name: &str) -> String {
    let characters: Vec<_> = name.chars().collect();
    let mut kebab = String::with_capacity(name.len() + 4);
    for (index, &character) in characters.iter().enumerate() {
        let previous = index.checked_sub(1).map(|previous| characters[previous]);
        let next = characters.get(index + 1);
        let begins = character.is_uppercase()
            && previous
                .is_some_and(|previous| !previous.is_uppercase() || next.is_some_and(|next| next.is_lowercase()));
        if (begins || character == '_') && !kebab.is_empty() && !kebab.ends_with('-') {
            kebab.push('-');
        }
        if character != '_' {
            kebab.extend(character.to_lowercase());
        }
    }
    kebab
}

/// The type as one would write it: `Result<Vec<u8>, crate::Failure>`.
pub(crate) fn type_text(tokens: &impl ToTokens) -> String {
    let mut text = String::new();
    write_tokens(tokens.to_token_stream(), &mut text);
    text
}

fn write_tokens(tokens: TokenStream, text: &mut String) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                text.push_str(open);
                write_tokens(group.stream(), text);
                text.push_str(close);
            }
            TokenTree::Punct(punct) => match punct.as_char() {
                separator @ (',' | ';') => {
                    text.push(separator);
                    text.push(' ');
                }
                operator @ ('+' | '=') => {
                    text.push(' ');
                    text.push(operator);
                    text.push(' ');
                }
                '-' => text.push_str(" -"),
                '>' if text.ends_with('-') => text.push_str("> "),
                other => text.push(other),
            },
            word => {
                if text.ends_with(|last: char| last.is_alphanumeric() || last == '_') {
                    text.push(' ');
                }
                text.push_str(&word.to_string());
            }
        }
    }
    text.truncate(text.trim_end().len());
}

/// Whether the identifier occurs anywhere in the tokens.
pub(crate) fn mentions(tokens: &impl ToTokens, name: &str) -> bool {
    fn any(tokens: TokenStream, name: &str) -> bool {
        tokens.into_iter().any(|token| match token {
            TokenTree::Ident(ident) => ident == name,
            TokenTree::Group(group) => any(group.stream(), name),
            _ => false,
        })
    }
    any(tokens.to_token_stream(), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        for (name, kebab) in [
            ("SendWelcome", "send-welcome"),
            ("A", "a"),
            ("SendHTTPRequest", "send-http-request"),
            ("HTTPRequest", "http-request"),
            ("SyncCRM", "sync-crm"),
            ("Step2Done", "step2-done"),
            ("OAuth2", "o-auth2"),
            ("V2", "v2"),
            ("Send_Mail", "send-mail"),
            ("_Hidden", "hidden"),
            ("already_small", "already-small"),
            ("ÜberMail", "über-mail"),
        ] {
            assert_eq!(kebab_case(name), kebab, "{name}");
        }
    }

    #[test]
    fn types_as_written() {
        for text in [
            "u32",
            "()",
            "Vec<u8>",
            "Result<Vec<u8>, crate::Failure>",
            "(u32, String)",
            "[u8; 4]",
            "&'static str",
            "Box<dyn Fn(u8) -> u8 + Send>",
            "<Wrapped as Trait<Item = u8>>::Name",
        ] {
            let ty: syn::Type = syn::parse_str(text).unwrap();
            assert_eq!(type_text(&ty), text);
        }
    }
}
