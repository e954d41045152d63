//! Rows that something other than the library has damaged: each verb goes on with the others, and the damaged one is found
//! by the person who has to mend it.

use queuert::adapter::{ChainQuery, JobQuery, Refusal, RenewLease, Renewal, StateAdapter};
use queuert::{ChainId, JobId, JobRecord, JobStatus};

use crate::bench::{Bench, LONG, MANY_ATTEMPTS, SHORT, answer, has};
use crate::draft::bury;
use crate::fixture::StateFixture;

/// A store with three jobs for each way in which the fixture can damage one; the second of them will be.
async fn each_damage<F: StateFixture>(fixture: F, case: impl AsyncFn(Bench<F>, &'static str, Vec<ChainId>)) {
    let damages = fixture.damages();
    each_of(damages, fixture, case).await;
}

async fn each_of<F: StateFixture>(
    damages: &'static [&'static str],
    fixture: F,
    case: impl AsyncFn(Bench<F>, &'static str, Vec<ChainId>),
) {
    let bench = Bench::new(fixture).await;
    if !has(!damages.is_empty(), "the fixture cannot damage a row") {
        return;
    }
    for how in damages {
        let chains = bench.start_in_turn("mail", 3).await;
        case(bench.clone(), *how, chains.clone()).await;
        // What is left must not be in the way of the next damage.
        for chain in chains {
            let _ = bench.delete(&[chain]).await;
        }
    }
}

async fn damage<F: StateFixture>(bench: &Bench<F>, chain: ChainId, how: &str) {
    bench.fixture().damage(bench.state(), chain.first_job(), how).await;
}

/// Checks that of these jobs only the damaged one says that it is.
fn check<'a>(jobs: impl IntoIterator<Item = &'a JobRecord>, chains: &[ChainId], how: &str) {
    let mut found: Vec<(JobId, bool)> = jobs.into_iter().map(|job| (job.id, job.unreadable.is_some())).collect();
    found.sort_unstable();
    let mut expected: Vec<(JobId, bool)> = Vec::new();
    for (place, chain) in chains.iter().enumerate() {
        expected.push((chain.first_job(), place == 1));
    }
    expected.sort_unstable();
    assert_eq!(found, expected, "{how}");
}

/// A claim takes all jobs, the damaged one too, which says what cannot be read; so does the answer to a lost claim. It is
/// of the type that was asked for, whatever its row says. (I17)
pub async fn a_damaged_job_is_claimed_with_the_others_and_says_so<F: StateFixture>(fixture: F) {
    each_damage(fixture, async |bench, how, chains| {
        damage(&bench, chains[1], how).await;
        let claimed = bench.claim(&["mail", "other"], 10).await.jobs;
        check(claimed.iter().map(|claimed| &claimed.job), &chains, how);
        for claimed in &claimed {
            assert_eq!(claimed.job.type_name.as_str(), "mail", "{how}");
        }
        let fence = claimed[0].job.lease.as_ref().expect("leased").fence;
        let again = bench.claimed(fence).await;
        check(again.iter().map(|attempt| &attempt.job), &chains, how);
        for attempt in &again {
            assert_eq!(attempt.job.type_name.as_str(), "mail", "{how}");
        }
    })
    .await;
}

/// An attempt can end a damaged job, which is dead then, with the error that it was given, and is found as such. (I17)
pub async fn a_damaged_job_can_be_ended_by_its_attempt<F: StateFixture>(fixture: F) {
    each_damage(fixture, async |bench, how, chains| {
        damage(&bench, chains[1], how).await;
        for _ in &chains {
            let attempt = bench.attempt("mail").await;
            if attempt.job.unreadable.is_some() {
                bench.apply(&attempt, bury("cannot be read")).await;
            }
        }
        let dead = bench.job(chains[1].first_job()).await;
        assert_eq!((dead.status, dead.lease), (JobStatus::Dead, None), "{how}");
        assert_eq!(dead.last_error.expect("stored").message, "cannot be read", "{how}");
        let mut query = JobQuery::default();
        (query.statuses, query.limit) = (Some(vec![JobStatus::Dead]), 10);
        let listed = answer(bench.state().list_jobs(None, &query).await);
        let listed: Vec<JobId> = listed.iter().map(|job| job.id).collect();
        assert_eq!(listed, [chains[1].first_job()], "{how}");
        let mut query = ChainQuery::default();
        (query.statuses, query.limit) = (Some(vec![JobStatus::Dead]), 10);
        let listed = answer(bench.state().list_chains(None, &query).await);
        let listed: Vec<ChainId> = listed.iter().map(|chain| chain.id).collect();
        assert_eq!(listed, [chains[1]], "{how}");
    })
    .await;
}

/// Leases are renewed, that of the damaged job too. (I10, I17)
pub async fn a_damaged_job_does_not_stop_the_renewals<F: StateFixture>(fixture: F) {
    each_damage(fixture, async |bench, how, chains| {
        let claimed = bench.claim(&["mail"], 10).await.jobs;
        damage(&bench, chains[1], how).await;
        let renewals: Vec<RenewLease> = claimed
            .iter()
            .map(|claimed| RenewLease {
                job: claimed.job.id,
                fence: claimed.job.lease.as_ref().expect("leased").fence,
                lease: LONG,
            })
            .collect();
        let renewed = answer(bench.state().renew_leases(None, &renewals).await);
        assert_eq!(renewed.len(), 3, "{how}");
        for renewal in renewed {
            assert!(matches!(renewal, Renewal::Renewed(_)), "{how}: {renewal:?}");
        }
    })
    .await;
}

/// A sweep takes back all expired leases. The damaged job is dead, with an error that says why; the others run again. It
/// does not stay in the way of later sweeps, however small they are. (I10, I17)
pub async fn a_damaged_job_is_dead_when_its_lease_is_taken_back<F: StateFixture>(fixture: F) {
    each_damage(fixture, async |bench, how, chains| {
        let claimed = bench.claim_as("worker", &[("mail", SHORT)], 10).await.jobs;
        assert_eq!(claimed.len(), 3);
        damage(&bench, chains[1], how).await;
        bench.elapse(SHORT * 2).await;
        let mut reaped = Vec::new();
        for _ in &chains {
            reaped.extend(bench.reap_with(&[("mail", MANY_ATTEMPTS)], 1, &[]).await);
        }
        check(reaped.iter().map(|reaped| &reaped.job), &chains, how);
        for reaped in &reaped {
            assert_eq!(reaped.job.type_name.as_str(), "mail", "{how}");
        }
        for (chain, status) in chains
            .iter()
            .zip([JobStatus::Pending, JobStatus::Dead, JobStatus::Pending])
        {
            assert_eq!(bench.job(chain.first_job()).await.status, status, "{how}");
        }
        let error = bench
            .job(chains[1].first_job())
            .await
            .last_error
            .expect("stored")
            .message;
        let id = chains[1].to_string();
        assert!(
            error.contains(&id) && error.contains("cannot be read"),
            "{how}: {error}"
        );
    })
    .await;
}

/// A damaged job that was taken back, and is retried by somebody who has not mended it, is of the type that it was: workers of
/// another type are never given it. So is one that was cancelled. (I17)
pub async fn a_damaged_job_that_is_retried_is_of_its_type<F: StateFixture>(fixture: F) {
    each_damage(fixture, async |bench, how, chains| {
        let claimed = bench.claim_as("worker", &[("mail", SHORT)], 10).await.jobs;
        assert_eq!(claimed.len(), 3);
        damage(&bench, chains[1], how).await;
        bench.elapse(SHORT * 2).await;
        assert_eq!(bench.reap_with(&[("mail", MANY_ATTEMPTS)], 10, &[]).await.len(), 3);
        bench.retry(&chains[1..2]).await.expect("it is dead");
        bench.cancel(&chains[1..2]).await.expect("it is open");
        bench.retry(&chains[1..2]).await.expect("it is cancelled");
        assert!(bench.claim(&["other"], 10).await.jobs.is_empty(), "{how}");
        let claimed = bench.claim(&["mail"], 10).await.jobs;
        assert_eq!(claimed.len(), 3, "{how}");
        for claimed in &claimed {
            assert_eq!(claimed.job.type_name.as_str(), "mail", "{how}");
        }
    })
    .await;
}

/// A running job whose row has lost its lease, or a part of it, or what else a sweep finds it by, is found by a sweep like one whose lease has expired. It is
/// dead, with an error that names it; a person finds it there, and may retry it. The others run again. (I10, I17)
pub async fn a_running_job_with_a_damaged_lease_is_dead_after_a_sweep<F: StateFixture>(fixture: F) {
    let damages = fixture.lease_damages();
    each_of(damages, fixture, async |bench, how, chains| {
        let claimed = bench.claim_as("worker", &[("mail", SHORT)], 10).await.jobs;
        assert_eq!(claimed.len(), 3);
        damage(&bench, chains[1], how).await;
        bench.elapse(SHORT * 2).await;
        let own = [chains[1].first_job()];
        let spared = bench.reap_with(&[("mail", MANY_ATTEMPTS)], 10, &own).await;
        assert_eq!(spared.len(), 2, "{how}: a process does not take what it runs itself");
        let reaped = bench.reap_with(&[("mail", MANY_ATTEMPTS)], 10, &[]).await;
        assert_eq!(reaped.len(), 1, "{how}");
        assert!(reaped[0].job.unreadable.is_some(), "{how}");
        let dead = bench.job(chains[1].first_job()).await;
        assert_eq!((dead.status, dead.lease), (JobStatus::Dead, None), "{how}");
        let error = dead.last_error.expect("stored").message;
        let id = chains[1].to_string();
        assert!(
            error.contains(&id) && error.contains("cannot be read"),
            "{how}: {error}"
        );
        let mut query = JobQuery::default();
        (query.statuses, query.limit) = (Some(vec![JobStatus::Dead]), 10);
        let listed = answer(bench.state().list_jobs(None, &query).await);
        assert_eq!(listed.len(), 1, "{how}");
        assert!(
            bench.reap_with(&[("mail", MANY_ATTEMPTS)], 10, &[]).await.is_empty(),
            "{how}"
        );
    })
    .await;
}

/// A list has the damaged row and all others, by any filter that lets them through; so has a read by id. (I17)
pub async fn a_damaged_job_is_in_the_lists_with_the_others<F: StateFixture>(fixture: F) {
    each_damage(fixture, async |bench, how, chains| {
        damage(&bench, chains[1], how).await;
        let ids: Vec<JobId> = chains.iter().map(|chain| chain.first_job()).collect();
        let found = answer(bench.state().get_jobs(None, &ids).await);
        check(&found, &chains, how);
        for statuses in [None, Some(vec![JobStatus::Pending])] {
            let mut query = JobQuery::default();
            (query.statuses, query.limit) = (statuses.clone(), 10);
            let listed = answer(bench.state().list_jobs(None, &query).await);
            check(&listed, &chains, how);
            let mut query = ChainQuery::default();
            (query.statuses, query.limit) = (statuses, 10);
            let listed = answer(bench.state().list_chains(None, &query).await);
            assert_eq!(listed.len(), 3, "{how}");
        }
        assert_eq!(answer(bench.state().get_chains(None, &chains).await).len(), 3, "{how}");
    })
    .await;
}

/// A person can cancel and delete a damaged chain, alone or with others. (I17)
pub async fn a_damaged_chain_can_be_cancelled_and_deleted<F: StateFixture>(fixture: F) {
    each_damage(fixture, async |bench, how, chains| {
        damage(&bench, chains[1], how).await;
        bench
            .cancel(&chains[1..])
            .await
            .expect("nothing keeps it from being cancelled");
        let cancelled = bench.job(chains[1].first_job()).await;
        assert_eq!(cancelled.status, JobStatus::Cancelled, "{how}");
        bench
            .delete(&chains)
            .await
            .expect("nothing keeps it from being deleted");
        let ids: Vec<JobId> = chains.iter().map(|chain| chain.first_job()).collect();
        assert!(answer(bench.state().get_jobs(None, &ids).await).is_empty(), "{how}");
    })
    .await;
}

/// A job that has lost its state is found by its id, as unreadable. Verbs that would change its chain refuse and name the chain,
/// and change nothing; a deletion takes it, alone or with others. The other jobs are claimed and listed. (I17)
pub async fn a_chain_that_has_lost_its_state_can_only_be_deleted<F: StateFixture>(fixture: F) {
    let damages = fixture.state_damages();
    each_of(damages, fixture, async |bench, how, chains| {
        damage(&bench, chains[1], how).await;
        let ids: Vec<JobId> = chains.iter().map(|chain| chain.first_job()).collect();
        check(&answer(bench.state().get_jobs(None, &ids).await), &chains, how);
        let found = answer(bench.state().get_chains(None, &chains).await);
        let unreadable: Vec<bool> = found.iter().map(|chain| chain.unreadable.is_some()).collect();
        assert_eq!(unreadable, [false, true, false], "{how}");

        let refused = Refusal::Damaged(chains[1]);
        assert_eq!(bench.cancel(&chains).await.err(), Some(refused.clone()), "{how}");
        assert_eq!(bench.retry(&chains[1..2]).await, Err(refused.clone()), "{how}");
        let triggered = answer(bench.state().trigger_jobs(None, &ids).await);
        assert_eq!(triggered, Err(refused), "{how}");
        let mut query = JobQuery::default();
        query.limit = 10;
        let listed = answer(bench.state().list_jobs(None, &query).await);
        for healthy in [chains[0], chains[2]] {
            assert!(listed.iter().any(|job| job.id == healthy.first_job()), "{how}");
        }
        assert_eq!(bench.claim(&["mail"], 10).await.jobs.len(), 2, "{how}");

        let deleted = bench
            .delete(&chains)
            .await
            .expect("nothing keeps it from being deleted");
        assert_eq!(deleted.len(), 3, "{how}");
        assert!(answer(bench.state().get_jobs(None, &ids).await).is_empty(), "{how}");
        let again = bench.delete(&chains).await.expect("nothing is left to refuse");
        assert!(again.is_empty(), "{how}");
    })
    .await;
}
