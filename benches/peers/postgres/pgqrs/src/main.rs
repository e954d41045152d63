//! pgqrs 0.15.
//!
//! `defaults`: as many consumers as there is concurrency, each with a handler for one message. `fastest`: each takes
//! batches of 100 with one handler for all, and polls every 10 ms. The limit of 1,000 starts per second that every
//! producer has by default is off in both, because it refuses the rest.
//!
//! Finished messages are kept (archived), without a result. It has no notifications: it polls.

use std::process::ExitCode;
use std::time::Duration;

use harness::{BoxError, Calls, Letter, Peer, Receipt, Settings};
use pgqrs::store::AnyStore;
use pgqrs::{Config, Consumer, Producer, QueueMessage};

const QUEUE: &str = "letters";
const BATCH: usize = 100;

fn main() -> ExitCode {
    harness::main::<Pgqrs>()
}

#[derive(Clone)]
struct Pgqrs {
    store: AnyStore,
    producer: Producer,
    settings: Settings,
}

fn process(calls: &Calls, message: QueueMessage) -> pgqrs::Result<()> {
    let letter: Letter = serde_json::from_value(message.payload)?;
    calls.call(&letter);
    // There is nowhere to keep it.
    std::hint::black_box(Receipt::of(&letter));
    Ok(())
}

/// Works until the process ends.
async fn consume(store: AnyStore, consumer: Consumer, calls: Calls, batches: bool) {
    let ended = if batches {
        let batch = move |messages: Vec<QueueMessage>| {
            let calls = calls.clone();
            async move { messages.into_iter().try_for_each(|message| process(&calls, message)) }
        };
        pgqrs::dequeue()
            .worker(&consumer)
            .batch(BATCH)
            .poll_interval(Duration::from_millis(10))
            .handle_batch(batch)
            .poll(&store)
            .await
    } else {
        let one = move |message: QueueMessage| {
            let calls = calls.clone();
            async move { process(&calls, message) }
        };
        pgqrs::dequeue().worker(&consumer).handle(one).poll(&store).await
    };
    if let Err(error) = ended {
        eprintln!("pgqrs: a consumer stopped: {error}");
    }
}

impl Peer for Pgqrs {
    const NAME: &'static str = "pgqrs";
    const STORED: &'static str = "SELECT count(*) FROM pgqrs_messages";
    const DONE: Option<&'static str> = Some("SELECT count(*) FROM pgqrs_messages WHERE archived_at IS NOT NULL");

    async fn open(url: &str, settings: &Settings) -> Result<Self, BoxError> {
        // Its own limit of connections, which is below ours.
        let mut config = Config::from_dsn(url);
        config.validation_config.max_enqueue_per_second = None;
        config.validation_config.max_enqueue_burst = None;
        let store = pgqrs::connect_with_config(&config).await?;
        pgqrs::admin(&store).install().await?;
        pgqrs::admin(&store).create_queue(QUEUE).await?;
        let producer = pgqrs::producer("producer", QUEUE).create(&store).await?;
        let settings = settings.clone();
        Ok(Self {
            store,
            producer,
            settings,
        })
    }

    async fn start_one(&self, letter: Letter) -> Result<(), BoxError> {
        self.producer.enqueue(&serde_json::to_value(letter)?).await?;
        Ok(())
    }

    async fn start_many(&self, letters: Vec<Letter>) -> Result<(), BoxError> {
        let letters: Vec<_> = letters.iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
        self.producer.batch_enqueue(&letters).await?;
        Ok(())
    }

    async fn work(&self, calls: Calls) -> Result<(), BoxError> {
        for number in 0..self.settings.concurrency {
            let name = format!("consumer-{number}");
            let consumer = pgqrs::consumer(&name, QUEUE).create(&self.store).await?;
            let (store, calls) = (self.store.clone(), calls.clone());
            tokio::spawn(consume(store, consumer, calls, self.settings.fastest));
        }
        Ok(())
    }
}
