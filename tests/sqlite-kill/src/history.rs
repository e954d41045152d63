//! What is known about one chain, for whoever has to find out what went wrong.

use queuert::{ChainId, JobRecord, Timestamp};

use crate::facts::Facts;

/// All that is known about a chain, one fact per line.
pub(crate) fn of(facts: &Facts, chain: ChainId) -> String {
    let mut lines = vec![format!("chain {chain}")];
    if let Some(notes) = facts.noted.get(&chain.first_job()) {
        lines.push(format!("  noted beside the database: {}", notes.join(", ")));
    }
    for row in facts.started.iter().filter(|row| row.chain == chain) {
        let found = if row.existing { "found by" } else { "started by" };
        lines.push(format!("  row in `started`: {} {found} {}", row.type_name, row.starter));
    }
    match facts.chains.get(&chain) {
        Some(record) => lines.push(format!(
            "  chain of {} jobs: {}, output {:?}, key {:?}",
            record.length,
            record.status,
            record.output.as_ref().map(queuert::Payload::as_str),
            record.deduplication_key,
        )),
        None => lines.push("  no such chain in the store".to_owned()),
    }
    for job in facts.jobs_of(chain) {
        lines.push(format!("  {}", line_of(job)));
        for blocker in facts.blockers.get(&job.id).into_iter().flatten() {
            let ended = time(blocker.ended_at);
            lines.push(format!(
                "      waits for {}: {}, ended {ended}",
                blocker.id, blocker.status
            ));
        }
        for row in facts.effects.iter().filter(|row| row.job == job.id) {
            lines.push(format!(
                "      row in `effect`: by {} in attempt {}",
                row.worker, row.attempt
            ));
        }
    }
    for row in facts.effects.iter().filter(|row| row.chain == chain) {
        if facts.jobs_of(chain).all(|job| job.id != row.job) {
            lines.push(format!(
                "  row in `effect` of {} {}, which is not in the store",
                row.type_name, row.job
            ));
        }
    }
    lines.join("\n")
}

fn line_of(job: &JobRecord) -> String {
    let error = job.last_error.as_ref().map(|error| error.message.as_str());
    format!(
        "{} {} {}: {}, attempt {}, {} claims, created {}, claimed {}, ended {} by {}, input {}, error {error:?}",
        job.chain_index,
        job.type_name,
        job.id,
        job.status,
        job.attempt,
        job.claims,
        time(Some(job.created_at)),
        time(job.started_at),
        time(job.ended_at),
        job.completed_by.as_ref().map_or("nobody", |worker| worker.as_str()),
        job.input.as_str(),
    )
}

/// Seconds of the clock that all processes share, without those that never change.
fn time(time: Option<Timestamp>) -> String {
    match time {
        Some(time) => format!("{:.6}", (time.as_micros() % 1_000_000_000_000) as f64 / 1e6),
        None => "never".to_owned(),
    }
}
