//! The derive macro of queuert. Use it through `queuert`, which documents and re-exports it.
//!
//! Three stages: `parse` reads the enum and its attributes into a model, `check` refuses models that break a rule,
//! `expand` writes the implementations. The first two collect every mistake, so that all are reported at once; a
//! faulty model is expanded too, more permissively, so that one mistake gives one message and no flood of errors
//! about missing implementations wherever the job types are used.

mod attribute;
mod check;
mod diagnostics;
mod expand;
mod naming;
mod parse;
mod reach;
mod value;

/// Makes the variants of an enum job types: each wraps the struct that is the input of its jobs.
///
/// # On a variant
///
/// | `#[job(..)]` | meaning | default |
/// |---|---|---|
/// | `entry` | chains may start with this type | chains may not start with it |
/// | `continues = [A, B]` | the variants that it may continue with, itself included | none |
/// | `output = Type` | the type with which it finishes its chain | it cannot finish a chain |
/// | `blockers = A` | waits for one chain that starts with an `A`, a variant or an entry of another enum | none |
/// | `blockers = (A, B)` | waits for exactly these chains, two to eight | |
/// | `blockers = [A]` | waits for any number of chains that start with an `A` | |
/// | `name = ".."` | the stable name under which jobs are stored | the variant's name in kebab-case |
/// | `retry(max_attempts = 25, initial = "10s", maximum = "5m", multiplier = 2.0, jitter = 0.1)` | how failed attempts are retried; each part may be left out | the worker's setting |
/// | `lease = "60s"` or `lease(duration = "60s", renew_every = "20s")` | how long a lease lasts | the worker's setting |
/// | `timeout = "30s"` | how long an attempt may run | the worker's setting |
/// | `priority = 5` | the priority of new jobs | 0 |
///
/// Durations are a whole number and a unit: `ms`, `s`, `m`, `h` or `d`. Numbers and durations may also be constant
/// expressions, such as the name of a constant: `retry(max_attempts = ATTEMPTS)`, `timeout = Duration::from_secs(30)`.
///
/// # On the enum
///
/// `#[job(crate = some::path)]` sets the path of the crate `queuert`. Default: `::queuert`.
///
/// # What it makes
///
/// Besides the implementations of queuert's traits: an enum `<Enum>Attempt` with a variant per job type, to `match`
/// the attempts of all of them, and an enum `<Entry>Output` for each entry whose chain can end with different types.
/// Entries whose chains have the same ends share one enum; the names of the others are aliases of the first.
/// An entry whose ends share one type, as written, has that as the output of its chain. The generated enums are as
/// visible as yours, so make it at least as visible as the entries that have an output enum. A lint that you allow on
/// your enum is allowed on everything that is generated.
#[proc_macro_derive(JobTypes, attributes(job))]
pub fn derive_job_types(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    let mut problems = diagnostics::Problems::default();
    let mut types = parse::parse(input, &mut problems);
    let graph = check::check(&types, &mut problems);
    types.drop_faulty_blockers();
    let code = expand::expand(&types, &graph, !problems.is_empty());
    let problems = problems.into_compile_errors();
    quote::quote!(#problems #code).into()
}
