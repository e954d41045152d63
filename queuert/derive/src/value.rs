//! Durations, numbers and names as they are written in attributes.

use std::time::Duration;

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::ParseStream;
use syn::spanned::Spanned;
use syn::{Expr, Lit, LitStr, Result, Token, Type};

/// `TypeName::MAX_LENGTH` of the core, which this crate cannot name.
const LONGEST_NAME: usize = 200;

/// About a hundred years: nobody waits longer, and every store can add it to a date.
const LONGEST_DURATION: Duration = Duration::from_secs(36_500 * 86_400);

/// A value and where it was written.
#[derive(Clone, Copy)]
pub(crate) struct Written<T> {
    pub(crate) value: T,
    pub(crate) span: Span,
}

/// A setting as it was given: written out, so that it is checked here, or as an expression, such as the name of a constant,
/// which the compiler evaluates.
pub(crate) enum Given<T> {
    Literal(Written<T>),
    Expression(Expr),
}

impl<T: Copy> Given<T> {
    pub(crate) fn literal(&self) -> Option<Written<T>> {
        match self {
            Self::Literal(written) => Some(*written),
            Self::Expression(_) => None,
        }
    }

    /// The code of the value.
    pub(crate) fn code(&self, literal: impl FnOnce(T) -> TokenStream) -> TokenStream {
        match self {
            Self::Literal(written) => literal(written.value),
            Self::Expression(expression) => expression.to_token_stream(),
        }
    }
}

/// Reads a literal with `literal`, and anything else as an expression.
pub(crate) fn given<T>(
    input: ParseStream<'_>,
    literal: impl FnOnce(ParseStream<'_>) -> Result<Written<T>>,
) -> Result<Given<T>> {
    let ends = |input: ParseStream<'_>| input.is_empty() || input.peek(Token![,]);
    let ahead = input.fork();
    let _sign: Option<Token![-]> = ahead.parse()?;
    let is_literal = ends(&ahead) || (ahead.parse::<Lit>().is_ok() && ends(&ahead));
    if is_literal {
        literal(input).map(Given::Literal)
    } else {
        input.parse().map(Given::Expression)
    }
}

/// A type that owns what it holds: an output is read back long after whoever it might borrow from is gone. `'static` is
/// left to the compiler, since a `Cow<'static, str>` can be read back.
pub(crate) fn owned_type(input: ParseStream<'_>) -> Result<Type> {
    let ty: Type = input.parse()?;
    let fix = match &ty {
        Type::Infer(_) => "name the type",
        Type::ImplTrait(_) | Type::TraitObject(_) => "name one concrete type",
        _ if borrows(ty.to_token_stream()) => {
            "it is stored and read back, so it must own its data; use `String` for `&str`, `Vec<T>` for `&[T]`, or leave \
             out the `&`"
        }
        _ => return Ok(ty),
    };
    let text = crate::naming::type_text(&ty);
    Err(syn::Error::new(
        ty.span(),
        format!("`{text}` cannot be an output: {fix}"),
    ))
}

fn borrows(tokens: TokenStream) -> bool {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let found = match token {
            TokenTree::Group(group) => borrows(group.stream()),
            TokenTree::Punct(punct) if punct.as_char() == '&' => true,
            TokenTree::Punct(punct) if punct.as_char() == '\'' => {
                !matches!(tokens.peek(), Some(TokenTree::Ident(name)) if name == "static")
            }
            _ => false,
        };
        if found {
            return true;
        }
    }
    false
}

pub(crate) fn duration(input: ParseStream<'_>) -> Result<Written<Duration>> {
    const FIX: &str = "write a whole number and a unit in quotes, such as \"500ms\", \"30s\", \"5m\", \"2h\" or \"1d\"";
    let literal: Lit = input
        .parse()
        .map_err(|error| syn::Error::new(error.span(), format!("expected a duration: {FIX}")))?;
    let Lit::Str(literal) = &literal else {
        return Err(syn::Error::new(
            literal.span(),
            format!("this is not a duration: {FIX}"),
        ));
    };
    let (text, span) = (literal.value(), literal.span());
    let value =
        parse_duration(&text).ok_or_else(|| syn::Error::new(span, format!("`{text}` is not a duration: {FIX}")))?;
    if value > LONGEST_DURATION {
        return Err(syn::Error::new(
            span,
            format!("`{text}` is longer than a hundred years"),
        ));
    }
    Ok(Written { value, span })
}

fn parse_duration(text: &str) -> Option<Duration> {
    let unit = text.trim_start_matches(|character: char| character.is_ascii_digit());
    let number: u64 = text[..text.len() - unit.len()].parse().ok()?;
    let seconds = match unit {
        "ms" => return Some(Duration::from_millis(number)),
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    Some(Duration::from_secs(number.saturating_mul(seconds)))
}

pub(crate) fn max_attempts(input: ParseStream<'_>) -> Result<Written<u32>> {
    let (text, span) = number(input)?;
    match text.parse() {
        Ok(0) => Err(syn::Error::new(
            span,
            "`max_attempts` is 0: a job needs at least one attempt",
        )),
        Ok(value) => Ok(Written { value, span }),
        Err(_) => Err(syn::Error::new(
            span,
            format!(
                "`max_attempts` is {text}: it must be a whole number from 1 to {}",
                u32::MAX
            ),
        )),
    }
}

pub(crate) fn priority(input: ParseStream<'_>) -> Result<Written<i16>> {
    let (text, span) = number(input)?;
    match text.parse() {
        Ok(value) => Ok(Written { value, span }),
        Err(_) => Err(syn::Error::new(
            span,
            format!(
                "`priority` is {text}: it must be a whole number from {} to {}",
                i16::MIN,
                i16::MAX
            ),
        )),
    }
}

pub(crate) fn multiplier(input: ParseStream<'_>) -> Result<Written<f64>> {
    let (text, span) = number(input)?;
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 1.0 => Ok(Written { value, span }),
        _ => Err(syn::Error::new(
            span,
            format!("`multiplier` is {text}: it must be a finite number of at least 1"),
        )),
    }
}

pub(crate) fn jitter(input: ParseStream<'_>) -> Result<Written<f64>> {
    let (text, span) = number(input)?;
    match text.parse::<f64>() {
        Ok(value) if (0.0..1.0).contains(&value) => Ok(Written { value, span }),
        _ => Err(syn::Error::new(
            span,
            format!("`jitter` is {text}: it must be at least 0 and below 1"),
        )),
    }
}

/// A number literal with its sign, without underscores.
fn number(input: ParseStream<'_>) -> Result<(String, Span)> {
    let minus: Option<Token![-]> = input.parse()?;
    let literal: Lit = input
        .parse()
        .map_err(|error| syn::Error::new(error.span(), "expected a number"))?;
    let (digits, suffix) = match &literal {
        Lit::Int(literal) => (literal.base10_digits(), literal.suffix()),
        Lit::Float(literal) => (literal.base10_digits(), literal.suffix()),
        other => return Err(syn::Error::new(other.span(), "expected a number")),
    };
    if !suffix.is_empty() {
        return Err(syn::Error::new(
            literal.span(),
            format!("write the number without `{suffix}`"),
        ));
    }
    let sign = if minus.is_some() { "-" } else { "" };
    Ok((format!("{sign}{digits}"), literal.span()))
}

pub(crate) fn name(input: ParseStream<'_>) -> Result<Written<String>> {
    let literal: LitStr = input
        .parse()
        .map_err(|error| syn::Error::new(error.span(), "expected the stable name in quotes: `name = \"..\"`"))?;
    let (value, span) = (literal.value(), literal.span());
    check_name(&value, span)?;
    Ok(Written { value, span })
}

pub(crate) fn check_name(name: &str, span: Span) -> Result<()> {
    if name.trim().is_empty() {
        return Err(syn::Error::new(
            span,
            "the name is empty: jobs are stored under it; leave `name` out for the variant in kebab-case",
        ));
    }
    if name.len() > LONGEST_NAME {
        return Err(syn::Error::new(
            span,
            format!(
                "the name has {} bytes, at most {LONGEST_NAME} are accepted: choose a shorter one with `#[job(name = \"..\")]`",
                name.len()
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, expected) in [
            ("500ms", Some(Duration::from_millis(500))),
            ("30s", Some(Duration::from_secs(30))),
            ("5m", Some(Duration::from_secs(300))),
            ("2h", Some(Duration::from_secs(7_200))),
            ("1d", Some(Duration::from_secs(86_400))),
            ("0s", Some(Duration::ZERO)),
            ("30", None),
            ("s", None),
            ("", None),
            ("1.5s", None),
            ("-1s", None),
            ("1 s", None),
            ("1w", None),
            ("99999999999999999999s", None),
        ] {
            assert_eq!(parse_duration(text), expected, "{text}");
        }
    }
}
