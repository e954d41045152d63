//! What a backlog, history, types, jobs due later, a held snapshot and more processes do to the store.

mod processes;
mod situation;

use queuert_measured::CORES;

use crate::Options;
use crate::measure::{Case, Ratio, Suite};
use crate::plot::{Line, Panel, Plot};
use situation::Situation;

/// What is started and drained in each round; it leaves the backlog as it was.
const MOVED: usize = 20_000;
const PROCESSES: [usize; 4] = [1, 2, 4, 8];
/// What several processes drain from.
const SHARED_BACKLOG: usize = 200_000;
const SECONDS: f64 = 2.0;

/// By the numbers of their schemas.
const SITUATIONS: [Situation; 8] = [
    Situation::backlog("backlog 1k", 1_000),
    Situation::backlog("backlog 100k", 100_000),
    Situation::backlog("backlog 1M", 1_000_000),
    Situation {
        finished: 5_000_000,
        ..Situation::backlog("backlog 1M, 5M finished", 1_000_000)
    },
    Situation {
        types: 10,
        ..Situation::backlog("backlog 100k, 10 types", 100_000)
    },
    Situation {
        types: 50,
        ..Situation::backlog("backlog 100k, 50 types", 100_000)
    },
    Situation {
        later: 200_000,
        ..Situation::backlog("backlog 100k, 200k due later", 100_000)
    },
    Situation {
        held: true,
        ..Situation::backlog("backlog 100k, a snapshot held", 100_000)
    },
];

pub(crate) fn suite(options: &Options) -> Suite {
    let divide = options.divide;
    let moved = (MOVED / divide).max(1_000);
    let mut cases = Vec::new();
    for (number, situation) in SITUATIONS.into_iter().enumerate() {
        let situation = situation.divided(divide);
        cases.push(Case::new(situation.name, move || {
            situation::run(number, situation, moved)
        }));
    }
    let backlog = (SHARED_BACKLOG / divide).max(5_000);
    let seconds = (SECONDS / divide as f64).max(0.5);
    for count in PROCESSES {
        cases.push(Case::new(drain_by(count), move || {
            processes::run(drain_by(count), count, backlog, seconds)
        }));
    }
    if options.case.as_deref() == Some(processes::CHILD) {
        cases.push(Case::new(processes::CHILD, processes::child));
    }
    Suite {
        name: "scale",
        rounds: 3,
        settings: vec![
            (
                "runtime",
                format!("multi-thread, {CORES} threads, the server on the same machine"),
            ),
            (
                "claims, starts and drains",
                format!(
                    "the adapter's verbs: 50 claims of 100, each given back; {moved} chains started in batches of \
                     1,000 by one task, and as many drained by two tasks, 100 at a time"
                ),
            ),
            (
                "processes",
                format!("workers with the defaults, concurrency 25 each, for {seconds} s, from a backlog of {backlog}"),
            ),
            ("divided by", divide.to_string()),
        ],
        cases,
        ratios: ratios(),
        limits: Vec::new(),
        plots: vec![plot()],
    }
}

fn drain_by(processes: usize) -> &'static str {
    match processes {
        1 => "drain, worker processes: 1",
        2 => "drain, worker processes: 2",
        4 => "drain, worker processes: 4",
        _ => "drain, worker processes: 8",
    }
}

fn ratios() -> Vec<Ratio> {
    let mut ratios = Vec::new();
    let promised = [
        ("backlog 1M, 5M finished", "backlog 1k", Some(1.5)),
        ("backlog 1M", "backlog 1k", None),
        ("backlog 100k, 10 types", "backlog 100k", None),
        ("backlog 100k, 50 types", "backlog 100k", Some(3.0)),
        ("backlog 100k, a snapshot held", "backlog 100k", Some(3.0)),
        ("backlog 100k, 200k due later", "backlog 100k", None),
    ];
    for (of, against, bound) in promised {
        let name = format!("claim, {of} / {against}");
        ratios.push(Ratio::at_most(
            &name,
            &situation::claim(of),
            &situation::claim(against),
            bound,
        ));
    }
    for what in [situation::start, situation::drain] {
        let of = what("backlog 1M, 5M finished");
        let name = format!("{of} / backlog 1k");
        ratios.push(Ratio::new(&name, &of, &[what("backlog 1k")], None));
    }
    let eight = drain_by(8);
    ratios.push(Ratio::new("drain, 8 processes / 1", eight, &[drain_by(1)], None));
    ratios
}

fn plot() -> Plot {
    let by_backlog = |what: fn(&str) -> String| -> Vec<(f64, String)> {
        let points = [(1e3, "backlog 1k"), (1e5, "backlog 100k"), (1e6, "backlog 1M")];
        points.into_iter().map(|(across, name)| (across, what(name))).collect()
    };
    let alone = |across: f64, name: &str, what: fn(&str) -> String| vec![(across, what(name))];
    let line = |name, points| Line { name, points };
    let many = |what: fn(&str) -> String| alone(1e6, "backlog 1M, 5M finished", what);
    let claims = Panel {
        title: "Claim of 100 jobs, by backlog",
        across: "jobs waiting",
        up: "µs, median",
        lines: vec![
            line("nothing else", by_backlog(situation::claim)),
            line("5M finished", many(situation::claim)),
            line(
                "200k due later",
                alone(1e5, "backlog 100k, 200k due later", situation::claim),
            ),
            line(
                "a snapshot held",
                alone(1e5, "backlog 100k, a snapshot held", situation::claim),
            ),
        ],
    };
    let types = [
        (1.0, "backlog 100k"),
        (10.0, "backlog 100k, 10 types"),
        (50.0, "backlog 100k, 50 types"),
    ];
    let types = Panel {
        title: "Claim of 100 jobs, by types",
        across: "types claimed at once, 100k jobs waiting",
        up: "µs, median",
        lines: vec![line(
            "claim",
            types
                .into_iter()
                .map(|(across, name)| (across, situation::claim(name)))
                .collect(),
        )],
    };
    let rates = Panel {
        title: "Starts and drain, by backlog",
        across: "jobs waiting",
        up: "jobs/s",
        lines: vec![
            line("start, batches of 1,000", by_backlog(situation::start)),
            line("drain", by_backlog(situation::drain)),
            line("start, 5M finished", many(situation::start)),
            line("drain, 5M finished", many(situation::drain)),
        ],
    };
    let processes = Panel {
        title: "Drain, by worker processes",
        across: "processes on two cores, which they share with the server",
        up: "jobs/s",
        lines: vec![line(
            "concurrency 25 each",
            PROCESSES
                .into_iter()
                .map(|count| (count as f64, drain_by(count).to_owned()))
                .collect(),
        )],
    };
    Plot {
        file: "scale.svg",
        panels: vec![claims, types, rates, processes],
    }
}
