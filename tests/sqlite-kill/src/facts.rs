//! Everything that a run has left: the store as its public interface tells it, the user's tables, the logs.

use std::collections::HashMap;
use std::path::Path;

use queuert::{ChainId, ChainRecord, JobId, JobRecord, JobType};
use queuert_sqlite::{Client, SqliteState};
use sqlx::{Connection, SqliteConnection};

use crate::jobs::{Collect, Gather};
use crate::process::Result;
use crate::{FILE, log};

/// A note in the user's table that a chain was started.
#[derive(Debug)]
pub(crate) struct StartedRow {
    pub(crate) chain: ChainId,
    pub(crate) type_name: String,
    pub(crate) starter: String,
    /// Whether it was there already, under its key.
    pub(crate) existing: bool,
}

/// A row that a job wrote in the transaction in which it completed.
#[derive(Debug)]
pub(crate) struct EffectRow {
    pub(crate) job: JobId,
    pub(crate) chain: ChainId,
    pub(crate) type_name: String,
    pub(crate) worker: String,
    pub(crate) attempt: i64,
}

pub(crate) struct Facts {
    pub(crate) integrity: Vec<String>,
    pub(crate) bytes: i64,
    pub(crate) chains: HashMap<ChainId, ChainRecord>,
    /// In the order of chains and their indexes.
    pub(crate) jobs: Vec<JobRecord>,
    /// Of the types that wait for chains.
    pub(crate) blockers: HashMap<JobId, Vec<ChainRecord>>,
    pub(crate) started: Vec<StartedRow>,
    pub(crate) effects: Vec<EffectRow>,
    pub(crate) reserved: Vec<JobId>,
    pub(crate) balance: i64,
    pub(crate) noted: HashMap<JobId, Vec<String>>,
}

const PAGE: usize = 1_000;

impl Facts {
    pub(crate) async fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(FILE);
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
        let mut connection = SqliteConnection::connect_with(&options).await?;
        let integrity = sqlx::query_scalar("PRAGMA integrity_check")
            .fetch_all(&mut connection)
            .await?;

        let client = Client::new(SqliteState::open(&path).await?);
        let jobs = all_jobs(&client).await?;
        let mut blockers = HashMap::new();
        for job in &jobs {
            if [Gather::NAME, Collect::NAME].contains(&job.type_name.as_str()) {
                blockers.insert(job.id, client.get_blockers(job.id).await?);
            }
        }
        let chains = all_chains(&client).await?;
        client.state().close().await?;

        let facts = Self {
            integrity,
            bytes: sqlx::query_scalar("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
                .fetch_one(&mut connection)
                .await?,
            chains,
            jobs,
            blockers,
            started: started(&mut connection).await?,
            effects: effects(&mut connection).await?,
            reserved: reserved(&mut connection).await?,
            balance: sqlx::query_scalar("SELECT total FROM balance")
                .fetch_one(&mut connection)
                .await?,
            noted: log::read(directory)?,
        };
        connection.close().await?;
        Ok(facts)
    }

    pub(crate) fn jobs_of(&self, chain: ChainId) -> impl Iterator<Item = &JobRecord> {
        self.jobs.iter().filter(move |job| job.chain_id == chain)
    }

    pub(crate) fn has_noted(&self, id: JobId, what: &str) -> bool {
        self.noted
            .get(&id)
            .is_some_and(|notes| notes.iter().any(|note| note == what))
    }
}

async fn all_jobs(client: &Client) -> Result<Vec<JobRecord>> {
    let mut page = client.list_jobs().limit(PAGE).await?;
    let mut jobs = page.items;
    while let Some(cursor) = page.next {
        page = client.list_jobs().limit(PAGE).after(cursor).await?;
        jobs.append(&mut page.items);
    }
    jobs.sort_by_key(|job| (job.chain_id, job.chain_index, job.id));
    Ok(jobs)
}

async fn all_chains(client: &Client) -> Result<HashMap<ChainId, ChainRecord>> {
    let mut page = client.list_chains().limit(PAGE).await?;
    let mut chains = page.items;
    while let Some(cursor) = page.next {
        page = client.list_chains().limit(PAGE).after(cursor).await?;
        chains.append(&mut page.items);
    }
    Ok(chains.into_iter().map(|chain| (chain.id, chain)).collect())
}

async fn started(connection: &mut SqliteConnection) -> Result<Vec<StartedRow>> {
    let rows: Vec<(String, String, String, bool)> =
        sqlx::query_as("SELECT chain, type, starter, existing FROM started")
            .fetch_all(connection)
            .await?;
    let rows = rows.into_iter().map(|(chain, type_name, starter, existing)| {
        Ok(StartedRow {
            chain: chain.parse()?,
            type_name,
            starter,
            existing,
        })
    });
    rows.collect()
}

async fn effects(connection: &mut SqliteConnection) -> Result<Vec<EffectRow>> {
    let rows: Vec<(String, String, String, String, i64)> =
        sqlx::query_as("SELECT job, chain, type, worker, attempt FROM effect")
            .fetch_all(connection)
            .await?;
    let rows = rows.into_iter().map(|(job, chain, type_name, worker, attempt)| {
        Ok(EffectRow {
            job: job.parse()?,
            chain: chain.parse()?,
            type_name,
            worker,
            attempt,
        })
    });
    rows.collect()
}

async fn reserved(connection: &mut SqliteConnection) -> Result<Vec<JobId>> {
    let rows: Vec<String> = sqlx::query_scalar("SELECT job FROM reserved")
        .fetch_all(connection)
        .await?;
    rows.iter().map(|job| Ok(job.parse()?)).collect()
}
