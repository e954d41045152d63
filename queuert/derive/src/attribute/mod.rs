//! Reads `#[job(..)]`.

mod keys;
mod timing;

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::parse::ParseStream;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Ident, Path, Result, Token, Type, bracketed, parenthesized, token};

use self::keys::{each_key, job_attributes};
pub(crate) use self::timing::{Lease, Retry};
use crate::diagnostics::Problems;
use crate::value::{self, Given, Written};

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
const MOST_BLOCKERS: usize = 8;

/// What the attributes of a variant say.
#[derive(Default)]
pub(crate) struct Settings {
    /// Where it says that chains may start with it.
    pub(crate) entry: Option<Span>,
    pub(crate) continues: Vec<Path>,
    /// There are continuations that could not be read, so nothing can be said about where chains get from here.
    pub(crate) continues_unreadable: bool,
    pub(crate) output: Output,
    pub(crate) blockers: Blockers,
    pub(crate) name: Option<Written<String>>,
    pub(crate) retry: Option<Retry>,
    pub(crate) lease: Option<Lease>,
    pub(crate) timeout: Option<Given<Duration>>,
    pub(crate) priority: Option<Given<i16>>,
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
    /// Whether a setting was given as an expression, whose value only the compiler knows.
    pub(crate) fn has_expressions(&self) -> bool {
        fn is_expression<T: Copy>(given: &Option<Given<T>>) -> bool {
            given.as_ref().is_some_and(|given| given.literal().is_none())
        }
        let retry = self.retry.as_ref().is_some_and(|retry| {
            is_expression(&retry.max_attempts)
                || [&retry.initial, &retry.maximum].into_iter().any(is_expression)
                || [&retry.multiplier, &retry.jitter].into_iter().any(is_expression)
        });
        let lease = self
            .lease
            .as_ref()
            .is_some_and(|lease| [&lease.duration, &lease.renew_every].into_iter().any(is_expression));
        retry || lease || is_expression(&self.timeout) || is_expression(&self.priority)
    }

    fn set(&mut self, key: &Ident, input: ParseStream<'_>, problems: &mut Problems) -> Result<()> {
        if key == "entry" {
            self.entry = Some(key.span());
            if let Some(equals) = input.parse::<Option<Token![=]>>()? {
                return Err(syn::Error::new(
                    equals.span(),
                    "`entry` takes no value: write `entry`, or leave it out",
                ));
            }
            return Ok(());
        }
        if key == "retry" {
            self.retry = Some(timing::read_retry(input, problems)?);
            return Ok(());
        }
        if key == "lease" {
            self.lease = Some(timing::read_lease(input, problems)?);
            return Ok(());
        }
        input
            .parse::<Token![=]>()
            .map_err(|error| syn::Error::new(error.span(), format!("expected `{key} = ..`")))?;
        match key.to_string().as_str() {
            "continues" => self.continues = read_continues(input)?,
            "output" => self.output = Output::Type(Box::new(value::owned_type(input)?)),
            "blockers" => self.blockers = read_blockers(input)?,
            "name" => self.name = Some(value::name(input)?),
            "timeout" => {
                let timeout = value::given(input, value::duration)?;
                if let Some(written) = timeout.literal()
                    && written.value.is_zero()
                {
                    return Err(syn::Error::new(
                        written.span,
                        "`timeout` is zero, so no attempt could ever succeed: leave it out for no timeout",
                    ));
                }
                self.timeout = Some(timeout);
            }
            _ => self.priority = Some(value::given(input, value::priority)?),
        }
        Ok(())
    }

    fn mark_unreadable(&mut self, key: &Ident) {
        match key.to_string().as_str() {
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
