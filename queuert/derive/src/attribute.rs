//! Reads `#[job(..)]`.

use std::time::Duration;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Ident, Meta, Path, Result, Token, Type, bracketed, parenthesized, token};

use crate::diagnostics::{Problems, closest, quoted};
use crate::value::{self, Written};

const KEYS: &[&str] = &[
    "entry",
    "continues",
    "output",
    "blockers",
    "name",
    "retry",
    "lease",
    "timeout",
    "priority",
];
const RETRY_KEYS: &[&str] = &["max_attempts", "initial", "maximum", "multiplier", "jitter"];
const LEASE_KEYS: &[&str] = &["duration", "renew_every"];
const MOST_BLOCKERS: usize = 8;

// The core's defaults, against which a half-given policy or lease is checked.
const DEFAULT_INITIAL: Duration = Duration::from_secs(10);
const DEFAULT_MAXIMUM: Duration = Duration::from_secs(300);
const DEFAULT_LEASE: Duration = Duration::from_secs(60);
const SHORTEST_LEASE: Duration = Duration::from_millis(10);

/// What the attributes of a variant say.
#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) entry: bool,
    pub(crate) continues: Vec<Path>,
    /// There are continuations that could not be read, so nothing can be said about where chains get from here.
    pub(crate) continues_unreadable: bool,
    pub(crate) output: Output,
    pub(crate) blockers: Blockers,
    pub(crate) name: Option<Written<String>>,
    pub(crate) retry: Option<Retry>,
    pub(crate) lease: Option<Lease>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) priority: Option<i16>,
}

/// What the job finishes its chain with.
#[derive(Default)]
pub(crate) enum Output {
    #[default]
    None,
    Unreadable,
    Type(Box<Type>),
}

/// What the job waits for.
#[derive(Default)]
pub(crate) enum Blockers {
    #[default]
    None,
    Unreadable,
    One(Box<Type>),
    Each(Vec<Type>),
    Any(Box<Type>),
}

impl Blockers {
    pub(crate) fn types(&self) -> &[Type] {
        match self {
            Self::None | Self::Unreadable => &[],
            Self::One(ty) | Self::Any(ty) => std::slice::from_ref(ty),
            Self::Each(types) => types,
        }
    }
}

#[derive(Default)]
pub(crate) struct Retry {
    pub(crate) max_attempts: Option<Written<u32>>,
    pub(crate) initial: Option<Written<Duration>>,
    pub(crate) maximum: Option<Written<Duration>>,
    pub(crate) multiplier: Option<Written<f64>>,
    pub(crate) jitter: Option<Written<f64>>,
}

#[derive(Default)]
pub(crate) struct Lease {
    pub(crate) duration: Option<Written<Duration>>,
    pub(crate) renew_every: Option<Written<Duration>>,
}

/// Reads the attributes of a variant.
pub(crate) fn read(attributes: &[Attribute], problems: &mut Problems) -> Settings {
    let mut settings = Settings::default();
    let mut seen = Vec::new();
    for tokens in job_attributes(attributes, problems) {
        each_key(
            tokens,
            "`#[job(..)]`",
            KEYS,
            &mut seen,
            problems,
            &mut |key, input, problems| {
                let result = settings.set(key, input, problems);
                if result.is_err() {
                    settings.mark_unreadable(key);
                }
                result
            },
        );
    }
    settings
}

/// Reads `#[job(crate = path)]` of the enum.
pub(crate) fn read_crate(attributes: &[Attribute], problems: &mut Problems) -> Option<TokenStream> {
    let mut path = None;
    let mut seen = Vec::new();
    for tokens in job_attributes(attributes, problems) {
        let misplaced = "`#[job(..)]` on the enum";
        each_key(
            tokens,
            misplaced,
            &["crate"],
            &mut seen,
            problems,
            &mut |_, input, _| {
                input.parse::<Token![=]>()?;
                path = Some(Path::parse_mod_style(input)?.into_token_stream());
                Ok(())
            },
        );
    }
    path
}

impl Settings {
    fn set(&mut self, key: &str, input: ParseStream<'_>, problems: &mut Problems) -> Result<()> {
        if key == "entry" {
            if let Some(equals) = input.parse::<Option<Token![=]>>()? {
                return Err(syn::Error::new(
                    equals.span(),
                    "`entry` takes no value: write `entry`, or leave it out",
                ));
            }
            self.entry = true;
            return Ok(());
        }
        if key == "retry" {
            self.retry = Some(read_retry(input, problems)?);
            return Ok(());
        }
        if key == "lease" {
            self.lease = Some(read_lease(input, problems)?);
            return Ok(());
        }
        input
            .parse::<Token![=]>()
            .map_err(|error| syn::Error::new(error.span(), format!("expected `{key} = ..`")))?;
        match key {
            "continues" => self.continues = read_continues(input)?,
            "output" => self.output = Output::Type(Box::new(input.parse()?)),
            "blockers" => self.blockers = read_blockers(input)?,
            "name" => self.name = Some(value::name(input)?),
            "timeout" => {
                let timeout = value::duration(input)?;
                if timeout.value.is_zero() {
                    return Err(syn::Error::new(
                        timeout.span,
                        "`timeout` is zero, so no attempt could ever succeed: leave it out for no timeout",
                    ));
                }
                self.timeout = Some(timeout.value);
            }
            _ => self.priority = Some(value::priority(input)?.value),
        }
        Ok(())
    }

    fn mark_unreadable(&mut self, key: &str) {
        match key {
            // What was meant is plain enough.
            "entry" => self.entry = true,
            "continues" => self.continues_unreadable = true,
            "output" => self.output = Output::Unreadable,
            "blockers" => self.blockers = Blockers::Unreadable,
            _ => {}
        }
    }
}

fn read_continues(input: ParseStream<'_>) -> Result<Vec<Path>> {
    if !input.peek(token::Bracket) {
        let span = input.span();
        let fix = match input.parse::<Path>() {
            Ok(path) => format!("[{}]", crate::naming::type_text(&path)),
            Err(_) => "[A, B]".into(),
        };
        return Err(syn::Error::new(
            span,
            format!("`continues` is a list of variants: write `continues = {fix}`"),
        ));
    }
    let list;
    let brackets = bracketed!(list in input);
    let names = Punctuated::<Path, Token![,]>::parse_terminated(&list)?;
    if names.is_empty() {
        return Err(syn::Error::new(
            brackets.span.join(),
            "`continues` is empty: name the variants that this job may continue with, or leave it out",
        ));
    }
    Ok(names.into_iter().collect())
}

fn read_blockers(input: ParseStream<'_>) -> Result<Blockers> {
    if input.peek(token::Bracket) {
        let list;
        let brackets = bracketed!(list in input);
        let types = entry_types(&list)?;
        let count = types.len();
        return match <[Type; 1]>::try_from(types) {
            Ok([ty]) => Ok(Blockers::Any(Box::new(ty))),
            Err(_) => Err(syn::Error::new(
                brackets.span.join(),
                format!(
                    "`[..]` means any number of chains of one type, but names {count}: write `blockers = [A]`, or \
                     `blockers = (A, B)` for exactly these"
                ),
            )),
        };
    }
    if input.peek(token::Paren) {
        let list;
        let parentheses = parenthesized!(list in input);
        let mut types = entry_types(&list)?;
        let message = match types.len() {
            0 => "`blockers` is empty: leave it out for a job that waits for nothing".into(),
            1 => format!(
                "a tuple has at least two blockers: write `blockers = {}` for one",
                types.pop().as_ref().map(crate::naming::type_text).unwrap_or_default()
            ),
            2..=MOST_BLOCKERS => return Ok(Blockers::Each(types)),
            count => format!(
                "{count} blockers, but at most {MOST_BLOCKERS} fit in a tuple: wait for any number of one type with \
                 `blockers = [A]`, or split the job"
            ),
        };
        return Err(syn::Error::new(parentheses.span.join(), message));
    }
    entry_type(input).map(|ty| Blockers::One(Box::new(ty)))
}

fn entry_types(input: ParseStream<'_>) -> Result<Vec<Type>> {
    let types = Punctuated::<Type, Token![,]>::parse_terminated_with(input, entry_type)?;
    Ok(types.into_iter().collect())
}

fn entry_type(input: ParseStream<'_>) -> Result<Type> {
    let ty: Type = input.parse()?;
    match ty {
        Type::Path(_) | Type::Group(_) | Type::Macro(_) => Ok(ty),
        other => Err(syn::Error::new(
            other.span(),
            "a blocker is a chain: name its entry job type, a variant of this enum or a type of another",
        )),
    }
}

fn read_retry(input: ParseStream<'_>, problems: &mut Problems) -> Result<Retry> {
    let mut retry = Retry::default();
    let tokens = parenthesised(input, "retry(max_attempts = 5, initial = \"10s\")")?;
    each_key(
        tokens,
        "`retry(..)`",
        RETRY_KEYS,
        &mut Vec::new(),
        problems,
        &mut |key, input, _| {
            input.parse::<Token![=]>()?;
            match key {
                "max_attempts" => retry.max_attempts = Some(value::max_attempts(input)?),
                "initial" => retry.initial = Some(value::duration(input)?),
                "maximum" => retry.maximum = Some(value::duration(input)?),
                "multiplier" => retry.multiplier = Some(value::multiplier(input)?),
                _ => retry.jitter = Some(value::jitter(input)?),
            }
            Ok(())
        },
    );
    let initial = retry.initial.map_or(DEFAULT_INITIAL, |written| written.value);
    let maximum = retry.maximum.map_or(DEFAULT_MAXIMUM, |written| written.value);
    if let Some(written) = retry.initial.or(retry.maximum)
        && initial > maximum
    {
        let whose = |given: bool| if given { "" } else { " (the default)" };
        problems.add(
            written.span,
            format!(
                "the first delay of {initial:?}{} is longer than the longest of {maximum:?}{}: lower `initial` or raise \
                 `maximum`",
                whose(retry.initial.is_some()),
                whose(retry.maximum.is_some()),
            ),
        );
        (retry.initial, retry.maximum) = (None, None);
    }
    Ok(retry)
}

fn read_lease(input: ParseStream<'_>, problems: &mut Problems) -> Result<Lease> {
    let mut lease = Lease::default();
    if input.parse::<Option<Token![=]>>()?.is_some() {
        lease.duration = Some(value::duration(input)?);
    } else {
        let tokens = parenthesised(
            input,
            "lease = \"60s\"` or `lease(duration = \"60s\", renew_every = \"20s\")",
        )?;
        each_key(
            tokens,
            "`lease(..)`",
            LEASE_KEYS,
            &mut Vec::new(),
            problems,
            &mut |key, input, _| {
                input.parse::<Token![=]>()?;
                match key {
                    "duration" => lease.duration = Some(value::duration(input)?),
                    _ => lease.renew_every = Some(value::duration(input)?),
                }
                Ok(())
            },
        );
    }
    if let Some(duration) = lease.duration
        && duration.value < SHORTEST_LEASE
    {
        problems.add(
            duration.span,
            format!(
                "a lease of {:?} is too short: it must last at least {SHORTEST_LEASE:?}, and long enough to be renewed",
                duration.value
            ),
        );
        return Ok(Lease::default());
    }
    let duration = lease.duration.map_or(DEFAULT_LEASE, |written| written.value);
    if let Some(renewal) = lease.renew_every {
        let problem = if renewal.value.is_zero() {
            Some("`renew_every` is zero: leave it out to renew after each third of the lease".into())
        } else if renewal.value >= duration {
            Some(format!(
                "the lease of {duration:?} ends before its renewal after {:?}: renew at least twice per lease",
                renewal.value
            ))
        } else {
            None
        };
        if let Some(problem) = problem {
            problems.add(renewal.span, problem);
            return Ok(Lease::default());
        }
    }
    Ok(lease)
}

/// The contents of every `#[job(..)]`.
fn job_attributes(attributes: &[Attribute], problems: &mut Problems) -> Vec<TokenStream> {
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

fn parenthesised(input: ParseStream<'_>, example: &str) -> Result<TokenStream> {
    if !input.peek(token::Paren) {
        return Err(syn::Error::new(input.span(), format!("write `{example}`")));
    }
    let content;
    parenthesized!(content in input);
    content.parse()
}

type ReadValue<'a> = dyn FnMut(&str, ParseStream<'_>, &mut Problems) -> Result<()> + 'a;

/// Reads `key`, `key = ..` and `key(..)` separated by commas; after a mistake it goes on behind the next comma.
fn each_key(
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
    read(&name, input, problems)?;
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
