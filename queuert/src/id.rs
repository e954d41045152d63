//! Identifiers, and the one place that makes them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::__task::Lock;
use crate::time::Timestamp;

macro_rules! uuid_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(Uuid);

        // As the bytes would, but in two instructions: indexes and lock orders compare ids all the time.
        impl Ord for $name {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.0.as_u128().cmp(&other.0.as_u128())
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl $name {
            /// Wraps a UUID, for example one that the caller made.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The UUID inside.
            pub const fn as_uuid(&self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }

        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }
    };
}

uuid_newtype! {
    /// Identifies a job. The library makes one (a UUIDv7, so ids sort by creation), or the caller supplies it.
    JobId
}

uuid_newtype! {
    /// Identifies a chain: the id of its first job.
    ChainId
}

uuid_newtype! {
    /// Identifies a claim: every write of an attempt names the fence under which its job was claimed, and the store
    /// refuses an old one.
    ///
    /// The claiming process makes a new fence for each claim, so no value is ever used twice for a job, whatever the
    /// store forgets in a crash and however often an operator resets the attempt counter.
    Fence
}

impl ChainId {
    /// The id of the first job of this chain.
    pub const fn first_job(&self) -> JobId {
        JobId(self.0)
    }

    /// When the id was made, by the clock of the process that made it, if it is one that holds its time.
    pub(crate) fn made_at(&self) -> Option<Timestamp> {
        let milliseconds = i64::try_from(self.0.as_u128() >> 80).unwrap_or(i64::MAX);
        (self.0.get_version_num() == 7).then(|| Timestamp::from_micros(milliseconds.saturating_mul(1_000)))
    }
}

impl JobId {
    /// The chain that this job starts, if it is the first job of a chain.
    pub const fn as_chain(&self) -> ChainId {
        ChainId(self.0)
    }
}

/// Identifies one running set of workers: the name that the user gave, and a part that is new at every start.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(Arc<str>);

impl WorkerId {
    /// Reads back a stored worker id.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerId({})", self.0)
    }
}

/// Where ids and jitter come from: the operating system, or a seed when a test wants to see the same run twice.
#[derive(Clone, Debug)]
pub(crate) struct Entropy {
    seeded: Option<Arc<Lock<Seeded>>>,
}

#[derive(Debug)]
struct Seeded {
    random: fastrand::Rng,
    counter: u64,
}

impl Entropy {
    pub(crate) fn system() -> Self {
        Self { seeded: None }
    }

    pub(crate) fn seeded(seed: u64) -> Self {
        Self {
            seeded: Some(Arc::new(Lock::new(Seeded {
                random: fastrand::Rng::with_seed(seed),
                counter: 0,
            }))),
        }
    }

    /// `count` ids in ascending order, also against those that this process made before.
    pub(crate) fn ids(&self, count: usize) -> Vec<Uuid> {
        match &self.seeded {
            None => {
                let context = &*V7_CONTEXT;
                let mut clock = context.lock();
                (0..count).map(|_| clock.next()).collect()
            }
            Some(seeded) => {
                let mut seeded = seeded.lock();
                (0..count)
                    .map(|_| {
                        seeded.counter += 1;
                        let high = u128::from(seeded.counter) << 80;
                        Uuid::from_u128(high | (seeded.random.u128(..) >> 48))
                    })
                    .collect()
            }
        }
    }

    pub(crate) fn job_ids(&self, count: usize) -> impl Iterator<Item = JobId> + use<> {
        self.ids(count).into_iter().map(JobId)
    }

    pub(crate) fn fence(&self) -> Fence {
        Fence(self.ids(1)[0])
    }

    pub(crate) fn worker(&self, name: Option<&str>) -> WorkerId {
        let unique = short(self.ids(1)[0]);
        WorkerId::new(match name {
            Some(name) => format!("{name}-{unique}"),
            None => unique,
        })
    }

    /// A duration that deviates by at most `spread`, as a share of it. A duration too long to be represented stays as it is.
    pub(crate) fn jittered(&self, duration: Duration, spread: f64) -> Duration {
        let seconds = duration.as_secs_f64() * self.jitter(spread);
        Duration::try_from_secs_f64(seconds).unwrap_or(duration)
    }

    /// A factor in `[1 - spread, 1 + spread]`.
    fn jitter(&self, spread: f64) -> f64 {
        let unit = match &self.seeded {
            None => fastrand::f64(),
            Some(seeded) => {
                let mut seeded = seeded.lock();
                seeded.random.f64()
            }
        };
        1.0 + spread * (2.0 * unit - 1.0)
    }
}

/// Fifty-one bits of an id in ten letters and digits. Stores keep a worker's name twice for every job, and a whole
/// id there was a thirtieth of what a job wrote to a server's log.
fn short(id: Uuid) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let (high, low) = id.as_u64_pair();
    let mut rest = high ^ low;
    let mut text = String::with_capacity(10);
    for _ in 0..10 {
        text.push(char::from(DIGITS[(rest % 36) as usize]));
        rest /= 36;
    }
    text
}

static V7_CONTEXT: std::sync::LazyLock<Lock<V7Clock>> = std::sync::LazyLock::new(|| {
    Lock::new(V7Clock {
        millis: 0,
        counter: 0,
        random: fastrand::Rng::new(),
    })
});

/// UUIDv7 with a 42-bit monotonic counter below the milliseconds: one lock serves a whole batch of ids, which is why
/// this is not `Uuid::now_v7` in a loop (it was a fifth of the cost of starting a chain in memory).
struct V7Clock {
    millis: u64,
    counter: u64,
    random: fastrand::Rng,
}

const COUNTER_BITS: u32 = 42;

impl V7Clock {
    fn next(&mut self) -> Uuid {
        let now = (Timestamp::wall_clock().as_micros().max(0) as u64) / 1_000;
        if now > self.millis {
            self.millis = now;
            // The top bit starts clear, so that the counter has room to grow within the millisecond.
            self.counter = self.random.u64(..1 << (COUNTER_BITS - 1));
        } else {
            self.counter += 1;
            if self.counter >> COUNTER_BITS != 0 {
                self.millis += 1;
                self.counter = 0;
            }
        }
        let counter = u128::from(self.counter);
        let high = counter >> 30;
        let low = counter & ((1 << 30) - 1);
        let random = u128::from(self.random.u32(..));
        let value = (u128::from(self.millis) << 80) | (7 << 76) | (high << 64) | (0b10 << 62) | (low << 32) | random;
        Uuid::from_u128(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_ids_are_version_seven_and_ascend() {
        let ids = Entropy::system().ids(10_000);
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(ids.iter().all(|id| id.get_version_num() == 7));
        assert!(ids.iter().all(|id| id.get_variant() == uuid::Variant::RFC4122));
    }

    #[test]
    fn a_seed_gives_the_same_ids_again() {
        assert_eq!(Entropy::seeded(7).ids(50), Entropy::seeded(7).ids(50));
        assert_ne!(Entropy::seeded(7).ids(50), Entropy::seeded(8).ids(50));
    }

    #[test]
    fn unnamed_workers_have_short_names_and_never_the_same() {
        let entropy = Entropy::system();
        let names: std::collections::HashSet<String> =
            (0..1_000).map(|_| entropy.worker(None).as_str().to_owned()).collect();
        assert_eq!(names.len(), 1_000);
        assert!(names.iter().all(|name| name.len() == 10));
        assert!(entropy.worker(Some("mail")).as_str().starts_with("mail-"));
    }

    #[test]
    fn jitter_stays_within_its_spread() {
        let entropy = Entropy::seeded(1);
        assert!(
            (0..1_000)
                .map(|_| entropy.jitter(0.1))
                .all(|factor| (0.9..=1.1).contains(&factor))
        );
        assert!(entropy.jittered(Duration::MAX, 0.5) > Duration::from_secs(1 << 60));
    }
}
