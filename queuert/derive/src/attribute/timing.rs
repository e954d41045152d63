//! `retry(..)` and `lease(..)`, with the rules of the core's settings.

use std::time::Duration;

use syn::parse::ParseStream;
use syn::{Result, Token};

use super::keys::{each_key, parenthesised};
use crate::diagnostics::Problems;
use crate::value::{self, Given};

const RETRY_KEYS: &[&str] = &["max_attempts", "initial", "maximum", "multiplier", "jitter"];
const LEASE_KEYS: &[&str] = &["duration", "renew_every"];

// The core's defaults, against which a half-given policy or lease is checked.
const DEFAULT_INITIAL: Duration = Duration::from_secs(10);
const DEFAULT_MAXIMUM: Duration = Duration::from_secs(300);
const DEFAULT_LEASE: Duration = Duration::from_secs(60);
const SHORTEST_LEASE: Duration = Duration::from_millis(10);

#[derive(Default)]
pub(crate) struct Retry {
    pub(crate) max_attempts: Option<Given<u32>>,
    pub(crate) initial: Option<Given<Duration>>,
    pub(crate) maximum: Option<Given<Duration>>,
    pub(crate) multiplier: Option<Given<f64>>,
    pub(crate) jitter: Option<Given<f64>>,
}

#[derive(Default)]
pub(crate) struct Lease {
    pub(crate) duration: Option<Given<Duration>>,
    pub(crate) renew_every: Option<Given<Duration>>,
}

pub(super) fn read_retry(input: ParseStream<'_>, problems: &mut Problems) -> Result<Retry> {
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
            match key.to_string().as_str() {
                "max_attempts" => retry.max_attempts = Some(value::given(input, value::max_attempts)?),
                "initial" => retry.initial = Some(value::given(input, value::duration)?),
                "maximum" => retry.maximum = Some(value::given(input, value::duration)?),
                "multiplier" => retry.multiplier = Some(value::given(input, value::multiplier)?),
                _ => retry.jitter = Some(value::given(input, value::jitter)?),
            }
            Ok(())
        },
    );
    // A delay that is an expression has no value before the compiler evaluates it: the worker checks it when it starts.
    let (Some(initial), Some(maximum)) = (
        known(&retry.initial, DEFAULT_INITIAL),
        known(&retry.maximum, DEFAULT_MAXIMUM),
    ) else {
        return Ok(retry);
    };
    let given = retry.initial.as_ref().or(retry.maximum.as_ref());
    if let Some(written) = given.and_then(Given::literal)
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

/// The value of a setting, if it is written out or left to its default.
fn known(given: &Option<Given<Duration>>, default: Duration) -> Option<Duration> {
    match given {
        None => Some(default),
        Some(given) => given.literal().map(|written| written.value),
    }
}

pub(super) fn read_lease(input: ParseStream<'_>, problems: &mut Problems) -> Result<Lease> {
    let mut lease = Lease::default();
    if input.parse::<Option<Token![=]>>()?.is_some() {
        lease.duration = Some(value::given(input, value::duration)?);
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
                match key.to_string().as_str() {
                    "duration" => lease.duration = Some(value::given(input, value::duration)?),
                    _ => lease.renew_every = Some(value::given(input, value::duration)?),
                }
                Ok(())
            },
        );
    }
    if let Some(duration) = lease.duration.as_ref().and_then(Given::literal)
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
    let Some(duration) = known(&lease.duration, DEFAULT_LEASE) else {
        return Ok(lease);
    };
    if let Some(renewal) = lease.renew_every.as_ref().and_then(Given::literal) {
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
