//! `#[derive(JobTypes)]` among names and attributes that might confuse it. Most of it is tested by compiling.
#![deny(warnings)]
#![allow(
    missing_debug_implementations,
    unreachable_pub,
    reason = "about the declarations, which are not what is tested"
)]

use queuert::{ChainRef, Entry, JobType, JobTypes, Payload};

/// Types that hide those of the prelude, and constants that would turn bindings into comparisons.
mod shadowed {
    #![allow(
        dead_code,
        non_camel_case_types,
        non_upper_case_globals,
        reason = "what is being tested"
    )]

    macro_rules! inputs {
        ($($name:ident)*) => {$(
            #[derive(::serde::Serialize, ::serde::Deserialize)]
            pub(crate) struct $name;
        )*};
    }
    inputs!(Result Option String Vec Box Debug S Ok Err Some None Send Probe Payload std queuert);

    const raw: u8 = 0;
    const input: u8 = 0;
    const output: u8 = 0;
    const value: u8 = 0;
    const variant: u8 = 0;
    const attempt: u8 = 0;
    const blockers: u8 = 0;
    const finished_by: u8 = 0;
    const f: u8 = 0;

    #[derive(::queuert::JobTypes)]
    pub(crate) enum Everything {
        #[job(entry, output = u8, continues = [Option, Ok])]
        Result(Result),
        #[job(output = ::std::option::Option<S>)]
        Option(Option),
        #[job(output = ::std::vec::Vec<::std::option::Option<u8>>)]
        Ok(Ok),
        #[job(entry, output = (), blockers = Result)]
        // Without a path it is taken for the one of the prelude, which is a more likely mistake.
        String(self::String),
        #[job(entry, output = (), blockers = (Result, String))]
        Vec(Vec),
        #[job(entry, output = (), blockers = [Result])]
        Box(Box),
        #[job(entry, output = (), retry(max_attempts = 2), lease = "5s", timeout = "1s")]
        Debug(Debug),
        #[job(entry, output = ())]
        S(S),
        #[job(entry, output = ())]
        Err(Err),
        #[job(entry, output = Some)]
        Some(Some),
        #[job(entry, output = ())]
        None(None),
        #[job(entry, output = ())]
        Send(Send),
        #[job(entry, output = ())]
        Probe(Probe),
        #[job(entry, output = ())]
        Payload(Payload),
        #[job(entry, output = ())]
        std(std),
        #[job(entry, output = ())]
        queuert(queuert),
    }
}

#[test]
fn names_of_the_prelude_can_be_taken() {
    assert_eq!(shadowed::Everything::NAMES.len(), 16);
    let output = shadowed::Result::decode_output("ok", &Payload::from_text("[1,null]")).unwrap();
    assert_eq!(format!("{output:?}"), "ResultOutput::Ok([Some(1), None])");
}

/// Variants that are named like what the traits declare: `Self::Attempt` would be ambiguous.
mod named_like_associated_items {
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(crate) struct Run;

    // An input may be an enum itself.
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(crate) enum Output {
        Output,
        Blockers,
    }

    #[derive(queuert::JobTypes)]
    pub(crate) enum Named {
        #[job(entry, output = u8, continues = [Output])]
        Attempt(Run),
        #[job(entry, output = bool)]
        Output(Output),
    }
}

#[test]
fn variants_can_be_named_like_associated_types() {
    use named_like_associated_items::{AttemptOutput, Named, Output, Run};
    assert_eq!(Named::NAMES, ["attempt", "output"]);
    assert_eq!(Run::NAME, "attempt");
    let output = Run::decode_output("output", &Payload::from_text("true")).unwrap();
    assert!(matches!(output, AttemptOutput::Output(true)));
    let _ = [Output::Output, Output::Blockers];
}

/// Raw identifiers, for the enum, a variant, a struct and an output.
mod raw {
    #![allow(non_camel_case_types, reason = "what is being tested")]

    #[derive(serde::Serialize, serde::Deserialize)]
    pub(crate) struct r#type;
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(crate) struct Next;
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(crate) struct r#struct;

    #[derive(queuert::JobTypes)]
    pub(crate) enum r#mod {
        #[job(entry, output = r#struct, continues = [r#match])]
        r#type(r#type),
        #[job(output = (), blockers = r#type)]
        r#match(Next),
    }
}

#[test]
fn raw_identifiers_are_stored_without_their_prefix() {
    assert_eq!(raw::r#mod::NAMES, ["type", "match"]);
    assert_eq!(raw::r#mod::graph().name, "mod");
    let output = raw::r#type::decode_output("match", &Payload::from_text("null")).unwrap();
    assert_eq!(format!("{output:?}"), "typeOutput::match(())");
}

/// Attributes of variants and of the enum.
mod attributes {
    #[derive(serde::Serialize, serde::Deserialize)]
    pub struct Begin;
    #[derive(serde::Serialize, serde::Deserialize)]
    pub struct Old;
    #[derive(serde::Serialize, serde::Deserialize)]
    #[deprecated]
    pub struct Older;

    /// A doc comment.
    #[derive(queuert::JobTypes)]
    #[non_exhaustive]
    #[allow(deprecated, reason = "what is being tested")]
    pub enum Attributed {
        /// Another, and settings that depend on a configuration.
        #[cfg_attr(all(), job(entry, output = u8, continues = [Old, Older]))]
        #[cfg_attr(any(), job(nonsense))]
        Begin(Begin),
        #[deprecated = "use the other"]
        #[non_exhaustive]
        #[job(output = bool)]
        Old(Old),
        #[job(output = bool)]
        Older(Older),
        #[cfg(any())]
        #[job(entry, output = NoSuchType)]
        Absent(NoSuchType),
    }
}

#[test]
fn attributes_of_variants_are_kept_apart() {
    assert_eq!(attributes::Attributed::NAMES, ["begin", "old", "older"]);
}

/// An enum that another macro writes.
macro_rules! chain {
    ($(#[$attribute:meta])* $visibility:vis $enum:ident: $first:ident => $last:ident($name:literal, $timeout:literal) -> $output:ty) => {
        #[derive(serde::Serialize, serde::Deserialize)]
        $visibility struct $first;
        #[derive(serde::Serialize, serde::Deserialize)]
        $visibility struct $last;

        $(#[$attribute])*
        #[derive(JobTypes)]
        $visibility enum $enum {
            #[job(entry, continues = [$last], output = $output)]
            $first($first),
            #[job(output = $output, name = $name, timeout = $timeout, blockers = [$first])]
            $last($last),
        }
    };
}

chain!(
    /// Made by a macro.
    pub(crate) Made: Open => Close("shut", "5s") -> Vec<Option<u8>>
);

#[test]
fn enums_can_be_written_by_macros() {
    assert_eq!(Made::NAMES, ["open", "shut"]);
    assert_eq!(Close::SETTINGS.timeout, Some(std::time::Duration::from_secs(5)));
    let output: Vec<Option<u8>> = Open::decode_output("shut", &Payload::from_text("[null]")).unwrap();
    assert_eq!(output, [None]);
    fn waits(chains: Vec<ChainRef<Open>>) {
        let _ = Close.blocked_by(chains);
    }
    let _ = waits;
}

#[test]
fn several_enums_fit_in_a_function() {
    chain!(First: A => B("b", "1s") -> std::borrow::Cow<'static, str>);
    {
        chain!(First: A => B("c", "1s") -> [u8; 3]);
        assert_eq!(First::NAMES, ["a", "c"]);
    }
    assert_eq!(First::NAMES, ["a", "b"]);
}

/// A private enum around public structs: others use the job types, and need not know that there is an enum.
pub mod private_enum {
    /// An input.
    #[derive(serde::Serialize, serde::Deserialize)]
    pub struct Fetch;
    /// Another.
    #[derive(serde::Serialize, serde::Deserialize)]
    pub struct Store;

    #[derive(queuert::JobTypes)]
    enum Private {
        #[job(entry, continues = [Store])]
        Fetch(Fetch),
        #[job(output = u8, blockers = [Fetch])]
        Store(Store),
    }
}

/// A public enum around structs that only this crate can name: it can be processed, but not started, by others.
pub mod private_structs {
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(crate) struct Fetch;

    /// The lint is the user's to silence, once.
    #[derive(queuert::JobTypes)]
    #[allow(private_interfaces, reason = "what is being tested")]
    pub enum Public {
        /// A job that only this crate starts.
        #[job(entry, output = u8)]
        Fetch(Fetch),
    }
}

#[test]
fn the_enum_and_its_inputs_may_differ_in_visibility() {
    assert_eq!(private_enum::Store::NAME, "store");
    assert_eq!(private_structs::Public::NAMES, [private_structs::Fetch::NAME]);
}

/// Settings by constants and expressions, which the compiler evaluates.
mod constants {
    use std::time::Duration;

    const ATTEMPTS: u32 = 7;
    const PATIENCE: Duration = Duration::from_secs(90);

    pub(crate) mod limits {
        pub(crate) const URGENT: i16 = 12;
    }

    #[derive(serde::Serialize, serde::Deserialize)]
    pub(crate) struct Charge;
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(crate) struct Refund;

    #[derive(queuert::JobTypes)]
    pub(crate) enum Payments {
        #[job(
            entry,
            output = (),
            retry(max_attempts = ATTEMPTS, initial = Duration::from_secs(3), maximum = PATIENCE, multiplier = 1.0 + 0.5, jitter = 0.0),
            lease(duration = PATIENCE, renew_every = "10s"),
            timeout = PATIENCE,
            priority = limits::URGENT,
        )]
        Charge(Charge),
        #[job(entry, output = (), retry(max_attempts = 2 * ATTEMPTS), lease = PATIENCE, priority = -limits::URGENT)]
        Refund(Refund),
    }
}

#[test]
fn settings_may_be_constants() {
    use std::time::Duration;

    let charge = constants::Charge::SETTINGS;
    let retry = charge.retry.unwrap();
    assert_eq!(
        (retry.max_attempts, retry.initial, retry.maximum),
        (7, Duration::from_secs(3), Duration::from_secs(90))
    );
    assert_eq!((retry.multiplier, retry.jitter), (1.5, 0.0));
    let lease = charge.lease.unwrap();
    assert_eq!(
        (lease.duration, lease.renew_every),
        (Duration::from_secs(90), Duration::from_secs(10))
    );
    assert_eq!(
        (charge.timeout, charge.priority),
        (Some(Duration::from_secs(90)), Some(12))
    );
    let refund = constants::Refund::SETTINGS;
    assert_eq!((refund.retry.unwrap().max_attempts, refund.priority), (14, Some(-12)));
    assert_eq!(refund.lease.unwrap().duration, Duration::from_secs(90));
    assert_eq!(constants::Payments::settings(), [charge, refund]);
}

/// What the user allows on the enum is allowed on what is generated beside it. Compiling is the test: warnings are denied.
mod lints {
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(crate) struct Left;
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(crate) struct Right;

    #[derive(queuert::JobTypes)]
    #[allow(non_camel_case_types, reason = "generated names begin with those of the user's")]
    pub(crate) enum lower_case {
        #[job(entry, continues = [right_way], output = u8)]
        left_way(Left),
        #[job(entry, continues = [left_way], output = u16)]
        right_way(Right),
    }

    mod expected {
        #[derive(queuert::JobTypes)]
        #[expect(
            non_camel_case_types,
            reason = "it comes up on the enum, and on what is generated it is allowed"
        )]
        pub(crate) enum also_lower_case {
            #[job(entry, output = u8)]
            one_way(Other),
        }

        #[derive(serde::Serialize, serde::Deserialize)]
        pub(crate) struct Other;
    }
}

#[test]
fn entries_with_the_same_ends_share_one_output() {
    let payload = |text: &str| Payload::from_text(text);
    let left: lints::left_wayOutput = lints::Left::decode_output("right-way", &payload("7")).unwrap();
    let right: lints::right_wayOutput = lints::Right::decode_output("right-way", &payload("7")).unwrap();
    assert!(matches!(left, lints::right_wayOutput::right_way(7)));
    assert!(matches!(right, lints::left_wayOutput::right_way(7)));
}
