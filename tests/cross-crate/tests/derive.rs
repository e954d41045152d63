//! What `#[derive(JobTypes)]` makes, as seen from another crate.
#![deny(warnings, missing_docs, missing_debug_implementations, unreachable_pub)]

use std::time::Duration;

use queuert::adapter::StateAdapter;
use queuert::{
    AwaitedBy, BlockerOf, BlockerSpec, ChainRef, ContinuationOf, Entry, GraphBlockers, JobSettings, JobType, JobTypes,
    LeaseSettings, Many, One, OutputOf, Payload, RetryPolicy, Unblocked,
};
use queuert_cross_crate_tests_other::{Charge, ChargeOutput, Receipt};
use serde::{Deserialize, Serialize};

/// The job types of the tests, in a module of their own and with the names that collide most easily.
mod jobs {
    use super::*;

    macro_rules! inputs {
        ($($name:ident)*) => {$(
            #[derive(Debug, Serialize, Deserialize)]
            pub(crate) struct $name;
        )*};
    }
    inputs!(Fetch SendHTTPRequest OAuth2 Retry Store Give Report Summary Many S Result);

    #[derive(JobTypes)]
    pub(crate) enum Import {
        #[job(entry, continues = [SendHTTPRequest, Retry])]
        Fetch(Fetch),
        #[job(
            output = Vec<(u32, String)>,
            retry(max_attempts = 5, initial = "500ms", maximum = "2h", multiplier = 3, jitter = 0.5),
            lease(duration = "30s", renew_every = "5s"),
            timeout = "1d",
            priority = -7
        )]
        SendHTTPRequest(SendHTTPRequest),
        #[job(continues = [Retry, Fetch], retry(max_attempts = 1), lease = "90s")]
        Retry(Retry),
        // Generated code must not trip over types that are named like those of the prelude, or like its own.
        #[job(entry, output = u8, continues = [Give])]
        Result(Result),
        #[job(output = Option<S>, name = "give it up")]
        Give(Give),
        #[job(entry, output = ())]
        OAuth2(OAuth2),
        #[job(entry, blockers = Fetch, output = ())]
        Store(Store),
        #[job(entry, blockers = (Fetch, Result, Fetch), output = ())]
        Summary(Summary),
        #[job(entry, blockers = [Charge], output = ())]
        Report(Report),
        #[job(entry, blockers = (super::elsewhere::Elsewhere, OAuth2), output = ())]
        Many(Many),
        #[job(entry, output = ())]
        S(S),
    }
}

mod elsewhere {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    pub(crate) struct Elsewhere;

    #[derive(JobTypes)]
    pub(crate) enum Others {
        #[job(entry, output = String)]
        Elsewhere(Elsewhere),
    }
}

use elsewhere::{Elsewhere, Others, OthersAttempt};
use jobs::{
    Fetch, Give, Import, OAuth2, Report, Result as Outcome, ResultOutput, Retry, SendHTTPRequest, Store, Summary,
};

fn payload(text: &str) -> Payload {
    Payload::from_text(text)
}

#[test]
fn names_are_the_variants_in_kebab_case_or_given() {
    assert_eq!(
        Import::NAMES,
        [
            "fetch",
            "send-http-request",
            "retry",
            "result",
            "give it up",
            "o-auth2",
            "store",
            "summary",
            "report",
            "many",
            "s",
        ]
    );
    assert_eq!(SendHTTPRequest::NAME, "send-http-request");
    assert_eq!(Give::NAME, "give it up");
    assert_eq!(Others::NAMES, ["elsewhere"]);
}

#[test]
fn settings_are_those_declared() {
    let seconds = Duration::from_secs;
    assert_eq!(Fetch::SETTINGS, JobSettings::new());
    assert_eq!(
        SendHTTPRequest::SETTINGS,
        JobSettings::new()
            .retry(
                RetryPolicy::new()
                    .max_attempts(5)
                    .initial(Duration::from_millis(500))
                    .maximum(seconds(7_200))
                    .multiplier(3.0)
                    .jitter(0.5)
            )
            .lease(LeaseSettings::new(seconds(30)).renew_every(seconds(5)))
            .timeout(seconds(86_400))
            .priority(-7)
    );
    assert_eq!(
        Retry::SETTINGS,
        JobSettings::new()
            .retry(RetryPolicy::new().max_attempts(1))
            .lease(LeaseSettings::new(seconds(90)))
    );
    let all = Import::settings();
    assert_eq!(all.len(), Import::NAMES.len());
    assert_eq!(all[1], SendHTTPRequest::SETTINGS);
}

#[test]
fn the_graph_is_what_was_declared() {
    let graph = Import::graph();
    assert_eq!(graph.name, "Import");
    let names: Vec<_> = graph.types.iter().map(|job_type| job_type.name).collect();
    assert_eq!(names, Import::NAMES);
    let entries: Vec<_> = graph.entries().map(|job_type| job_type.name).collect();
    assert_eq!(
        entries,
        ["fetch", "result", "o-auth2", "store", "summary", "report", "many", "s"]
    );
    let edges: Vec<_> = graph.edges().collect();
    assert_eq!(
        edges,
        [
            ("fetch", "send-http-request"),
            ("fetch", "retry"),
            ("retry", "retry"),
            ("retry", "fetch"),
            ("result", "give it up"),
        ]
    );
    let output = |name| graph.get(name).and_then(|job_type| job_type.output);
    assert_eq!(output("fetch"), None);
    assert_eq!(output("send-http-request"), Some("Vec<(u32, String)>"));
    assert_eq!(output("give it up"), Some("Option<S>"));
    let blockers = |name| graph.get(name).map(|job_type| job_type.blockers.clone());
    assert_eq!(blockers("fetch"), Some(GraphBlockers::None));
    assert_eq!(blockers("store"), Some(GraphBlockers::Each(vec!["fetch"])));
    assert_eq!(
        blockers("summary"),
        Some(GraphBlockers::Each(vec!["fetch", "result", "fetch"]))
    );
    assert_eq!(blockers("report"), Some(GraphBlockers::Any("charge")));
    assert_eq!(
        blockers("many"),
        Some(GraphBlockers::Each(vec!["elsewhere", "o-auth2"]))
    );
}

#[test]
fn the_graph_as_a_diagram() {
    let expected = r#"flowchart TD
    fetch(["fetch"])
    fetch --> send-http-request
    fetch --> retry
    send-http-request["send-http-request"]
    send-http-request ==> send-http-request_output[/"Vec#lt;(u32, String)#gt;"/]
    retry["retry"]
    retry --> retry
    retry --> fetch
    result(["result"])
    result ==> result_output[/"u8"/]
    result --> give_it_up
    give_it_up["give it up"]
    give_it_up ==> give_it_up_output[/"Option#lt;S#gt;"/]
"#;
    let diagram = Import::graph().mermaid();
    assert!(diagram.starts_with(expected), "{diagram}");
    assert!(
        diagram.contains("    charge -. unblocks (any number) .-> report\n"),
        "{diagram}"
    );
    assert!(diagram.contains("    elsewhere -. unblocks .-> many\n"), "{diagram}");
}

#[test]
fn ends_that_share_a_type_give_the_chain_that_output() {
    // Through a loop and a branch, there is one end.
    let output: Vec<(u32, String)> = Fetch::decode_output("send-http-request", &payload(r#"[[1,"a"]]"#)).unwrap();
    assert_eq!(output, [(1, "a".to_owned())]);
    let () = OAuth2::decode_output("o-auth2", &payload("null")).unwrap();
}

#[test]
fn ends_that_differ_give_the_chain_an_enum() {
    match Outcome::decode_output("result", &payload("7")) {
        Ok(ResultOutput::Result(7)) => {}
        other => panic!("{other:?}"),
    }
    match Outcome::decode_output("give it up", &payload("null")) {
        Ok(ResultOutput::Give(None)) => {}
        other => panic!("{other:?}"),
    }
    match Charge::decode_output("charge", &payload(r#"{"number":3}"#)) {
        Ok(ChargeOutput::Charge(Receipt { number: 3 })) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_generated_output_is_debug_whether_or_not_its_parts_are() {
    assert_eq!(format!("{:?}", ResultOutput::Result(7)), "ResultOutput::Result(7)");
    assert_eq!(
        format!("{:?}", ChargeOutput::Charge(Receipt { number: 3 })),
        "ChargeOutput::Charge(..)"
    );
}

#[test]
fn an_output_by_a_job_that_ends_no_such_chain_is_refused() {
    let error = Fetch::decode_output("fetch", &payload("[]")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "such a chain is finished by `send-http-request`, not by `fetch`"
    );
    let error = Outcome::decode_output("store", &payload("7")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "such a chain is finished by `result` or `give it up`, not by `store`"
    );
}

#[test]
fn an_output_of_another_type_is_refused() {
    assert!(Outcome::decode_output("result", &payload("\"seven\"")).is_err());
}

#[test]
fn blockers_are_read_by_name() {
    let fetched = || vec![(1, "a".to_owned())];
    let one = fetched();
    assert_eq!(<Fetch as BlockerOf<Store>>::outputs(&one), [&fetched()]);

    let three = (fetched(), ResultOutput::Result(7), vec![]);
    assert_eq!(<Fetch as BlockerOf<Summary>>::outputs(&three), [&fetched(), &vec![]]);
    assert_eq!(<Outcome as BlockerOf<Summary>>::outputs(&three).len(), 1);

    let any = vec![ChargeOutput::Review(true), ChargeOutput::Review(false)];
    assert_eq!(<Charge as BlockerOf<Report>>::outputs(&any).len(), 2);
    assert!(<Charge as BlockerOf<Report>>::outputs(&Vec::new()).is_empty());
}

#[test]
fn relations_are_those_declared() {
    fn continuation<Previous: JobType, Next: ContinuationOf<Previous>>() {}
    fn output<J: JobType, O: OutputOf<J>>() {}
    fn unblocked<J: Unblocked>() {}
    fn waits_for<J: JobType<Blockers = Kind>, Kind: BlockerSpec + AwaitedBy<J>>() {}

    continuation::<Fetch, SendHTTPRequest>();
    continuation::<Fetch, Retry>();
    continuation::<Retry, Retry>();
    continuation::<Retry, Fetch>();
    output::<SendHTTPRequest, Vec<(u32, String)>>();
    output::<OAuth2, ()>();
    unblocked::<Fetch>();
    unblocked::<Retry>();
    waits_for::<Store, One<Fetch>>();
    waits_for::<Summary, (Fetch, Outcome, Fetch)>();
    waits_for::<Report, Many<Charge>>();
    waits_for::<jobs::Many, (Elsewhere, OAuth2)>();
}

#[test]
fn steps_take_the_declared_blockers() {
    fn check(
        fetch: ChainRef<Fetch>,
        result: ChainRef<Outcome>,
        charges: &[ChainRef<Charge>],
        elsewhere: ChainRef<Elsewhere>,
        login: ChainRef<OAuth2>,
    ) {
        let _ = Store.blocked_by(fetch);
        let handle = &fetch;
        let _ = Store.blocked_by(handle);
        let _ = Summary.blocked_by((fetch, result, &fetch));
        let _ = Report.blocked_by(charges);
        let _ = Report.blocked_by([] as [ChainRef<Charge>; 0]);
        let _ = jobs::Many.blocked_by((elsewhere, login));
    }
    let _ = check;
}

#[test]
fn attempts_can_be_matched_exhaustively() {
    fn name<S: StateAdapter>(attempt: &<Others as JobTypes>::Attempt<S>) -> &'static str {
        match attempt {
            OthersAttempt::Elsewhere(_) => Elsewhere::NAME,
        }
    }
    fn debug<S: StateAdapter>(attempt: &OthersAttempt<S>) -> String {
        format!("{attempt:?} of {}", name(attempt))
    }
    // There is no attempt to be had without a worker: compiling is the test.
    #[expect(dead_code, reason = "cannot be called, as there is no state adapter here")]
    fn uses<S: StateAdapter>() {
        let _ = debug::<S>;
    }
}

/// The path to the crate can be said.
mod renamed {
    pub(crate) mod reexported {
        pub(crate) use ::queuert as jobs;
    }

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Plain;

    #[derive(reexported::jobs::JobTypes)]
    #[job(crate = self::reexported::jobs)]
    enum Renamed {
        #[job(entry, output = ())]
        Plain(Plain),
    }
}

#[test]
fn enums_can_be_declared_in_functions() {
    #[derive(Serialize, Deserialize)]
    struct Inner;

    #[derive(JobTypes)]
    enum Local {
        #[job(entry, output = Vec<u8>)]
        Inner(Inner),
    }

    assert_eq!(Local::graph().types[0].output, Some("Vec<u8>"));
}
