//! What is known about one chain, for whoever has to find out what went wrong.

use queuert::{ChainId, JobRecord, Timestamp};

use crate::facts::Facts;

/// All that is known about a chain, one fact per line, and then what was noted about it, in the order of time.
pub(crate) fn of(facts: &Facts, chain: ChainId) -> String {
    let mut lines = vec![format!("chain {chain}")];
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
    let mut ids = vec![chain.to_string()];
    for job in facts.jobs.iter().filter(|job| job.chain_id == chain) {
        ids.push(job.id.to_string());
        lines.push(format!("  {}", line_of(job)));
        for blocker in facts.blockers.get(&job.id).into_iter().flatten() {
            let ended = time(blocker.ended_at);
            lines.push(format!(
                "      waits for {}: {}, ended {ended}",
                blocker.id, blocker.status
            ));
        }
    }
    for row in facts.effects.iter().filter(|row| row.chain == chain) {
        lines.push(format!(
            "  row in `effect`: job {} by {} in attempt {}",
            row.job, row.worker, row.attempt
        ));
    }
    // With what befell the processes that had to do with it.
    let concerns = |words: &[String]| words.iter().any(|word| ids.contains(word));
    let processes: Vec<&str> = facts
        .lines
        .iter()
        .filter(|line| concerns(&line.words))
        .map(|line| &*line.process)
        .collect();
    for line in &facts.lines {
        let befell = ["killed", "froze", "thawed"].map(String::from).contains(&line.words[0]);
        if concerns(&line.words) || (befell && line.words.get(1).is_some_and(|who| processes.contains(&&**who))) {
            lines.push(format!("    {} {}: {}", line.at, line.process, line.words.join(" ")));
        }
    }
    lines.join("\n")
}

fn line_of(job: &JobRecord) -> String {
    let error = job.last_error.as_ref().map(|error| error.message.as_str());
    format!(
        "{} {} {}: {}, attempt {}, {} claims, created {}, scheduled {}, claimed {}, ended {} by {}, input {}, error {error:?}",
        job.chain_index,
        job.type_name,
        job.id,
        job.status,
        job.attempt,
        job.claims,
        time(Some(job.created_at)),
        time(Some(job.scheduled_at)),
        time(job.started_at),
        time(job.ended_at),
        job.completed_by.as_ref().map_or("nobody", |worker| worker.as_str()),
        job.input.as_str(),
    )
}

/// Milliseconds of the clock that all processes share.
fn time(time: Option<Timestamp>) -> String {
    match time {
        Some(time) => format!("{:.3}", time.as_micros() as f64 / 1e3),
        None => "never".to_owned(),
    }
}
