//! The repository's documents: their samples are doctests.

pub mod shop;

macro_rules! documents {
    ($($name:ident => $path:literal),+ $(,)?) => {$(
        #[doc = include_str!(concat!("../../../", $path))]
        pub mod $name {}
    )+};
}

documents! {
    readme => "README.md",
    architecture => "ARCHITECTURE.md",
    design => "DESIGN.md",
    introduction => "docs/introduction.md",
    getting_started => "docs/getting-started.md",
    chains => "docs/chains.md",
    transactions => "docs/transactions.md",
    processors => "docs/processors.md",
    failures => "docs/failures.md",
    scheduling => "docs/scheduling.md",
    deduplication => "docs/deduplication.md",
    waiting => "docs/waiting.md",
    workers => "docs/workers.md",
    operating => "docs/operating.md",
    middlewares => "docs/middlewares.md",
    observability => "docs/observability.md",
    testing => "docs/testing.md",
    deploying => "docs/deploying.md",
    reliability => "docs/reliability.md",
    internals => "docs/internals.md",
    faq => "docs/faq.md",
    summary => "docs/SUMMARY.md",
    moving_from_apalis => "docs/moving-from-apalis.md",
    moving_from_graphile_worker => "docs/moving-from-graphile-worker.md",
    moving_from_sqlxmq => "docs/moving-from-sqlxmq.md",
    moving_from_typescript => "docs/moving-from-typescript.md",
    mistakes => "docs/mistakes.md",
    sqlite => "docs/sqlite.md",
    postgres => "docs/postgres.md",
    writing_an_adapter => "docs/writing-an-adapter.md",
}
