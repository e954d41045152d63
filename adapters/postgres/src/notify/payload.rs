//! What goes over the channel: a versioned, compact text.
//!
//! ```text
//! payload  = "q1" sender number item*
//! sender   = 16 hexadecimal digits: the process, or zeros if also the process itself shall listen to it
//! number   = hexadecimal digits, "."
//! item     = "J" count ":" length ":" name     jobs of a type are available
//!          | "C" id | "L" id                   a chain ended, a lease was lost; 32 hexadecimal digits
//!          | "T" sender number count ":" length ":" name   jobs of that announcement are taken
//!          | "P" count ":" hash*               the sender is there and runs types with these hashes, 8 digits each
//!          | "H" "R"                           which processes are there? / look at the store
//!          | "K" microseconds ":"              the sender has looked for due jobs of all types, which took the server so long
//!          | "W"                               and for processes that have died
//!          | "M" key ":"                       and has found no session that holds the lock of this process
//! ```
//!
//! Anything else is ignored from where it stops making sense: a later version may say more, and any program may write
//! to the channel.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use queuert::adapter::Notice;
use queuert::{ChainId, JobId, TypeName};
use uuid::Uuid;

/// What Postgres takes, less the byte that it wants for itself.
pub(crate) const LIMIT: usize = 7_999;

/// More ids than this waiting to be announced are replaced by the word to look at the store.
const MOST_IDS: usize = 4_096;

/// More hashes than this are not announced; the sender then counts for every type.
const MOST_TYPES: usize = 512;

/// Counts of another program may be anything; this is more than any process can take.
const MOST_JOBS: usize = 1 << 30;

/// The sender of announcements that every process must act on, the announcing one included.
pub(crate) const NOBODY: u64 = 0;

/// An announcement: its sender, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ticket {
    pub(crate) sender: u64,
    pub(crate) number: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    Notice(Notice),
    /// So many jobs of the announcement are taken.
    Taken {
        ticket: Ticket,
        type_name: TypeName,
        count: usize,
    },
    /// The sender is there, and runs these types; `None` for any.
    Present(Option<BTreeSet<u32>>),
    /// All processes are asked to announce which types they run.
    Hello,
    /// There were too many notices to announce.
    Resync,
    /// The sender has looked for due jobs of all types, announced or not, which took the server so long.
    Looked(Duration),
    /// The sender has looked for processes that have died.
    Watched,
    /// The sender has found that no session holds the lock of the process with this key.
    Missed(i64),
}

/// The next announcement, merged from notices.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    jobs: BTreeMap<TypeName, usize>,
    chains: BTreeSet<Uuid>,
    leases: BTreeSet<Uuid>,
    taken: BTreeMap<(Ticket, TypeName), usize>,
    present: Option<Option<BTreeSet<u32>>>,
    hello: bool,
    resync: bool,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
            && self.chains.is_empty()
            && self.leases.is_empty()
            && self.taken.is_empty()
            && self.present.is_none()
            && !self.hello
            && !self.resync
    }

    pub(crate) fn notice(&mut self, notice: &Notice) {
        match notice {
            Notice::JobsAvailable { type_name, count } => add(&mut self.jobs, type_name.clone(), *count),
            Notice::ChainEnded(chain) => {
                self.chains.insert(chain.as_uuid());
            }
            Notice::LeaseLost(job) => {
                self.leases.insert(job.as_uuid());
            }
            // A kind that this version cannot tell is still a reason to look.
            _ => self.resync = true,
        }
        self.bound();
    }

    pub(crate) fn taken(&mut self, ticket: Ticket, type_name: TypeName, count: usize) {
        add(&mut self.taken, (ticket, type_name), count);
    }

    pub(crate) fn present(&mut self, types: Option<BTreeSet<u32>>) {
        self.present = Some(types.filter(|types| types.len() <= MOST_TYPES));
    }

    pub(crate) fn hello(&mut self) {
        self.hello = true;
    }

    /// Puts back what could not be announced.
    pub(crate) fn merge(&mut self, other: Self) {
        for (type_name, count) in other.jobs {
            add(&mut self.jobs, type_name, count);
        }
        self.chains.extend(other.chains);
        self.leases.extend(other.leases);
        for (key, count) in other.taken {
            add(&mut self.taken, key, count);
        }
        self.present = self.present.take().or(other.present);
        self.hello |= other.hello;
        self.resync |= other.resync;
        self.bound();
    }

    /// Ids wait in memory while the server is away, but not without bound.
    fn bound(&mut self) {
        if self.chains.len() + self.leases.len() > MOST_IDS {
            self.chains.clear();
            self.leases.clear();
            self.resync = true;
        }
        if self.taken.len() > MOST_IDS {
            self.taken.clear();
        }
    }

    /// The payloads, each with a number of its own: Postgres drops one that is equal to another of its transaction.
    pub(crate) fn encode(&self, sender: u64, mut next_number: impl FnMut() -> u64) -> Vec<String> {
        let mut payloads = Vec::new();
        let mut payload = String::new();
        for item in self.items() {
            if !payload.is_empty() && payload.len() + item.len() > LIMIT {
                payloads.push(std::mem::take(&mut payload));
            }
            if payload.is_empty() {
                payload = format!("q1{sender:016x}{:x}.", next_number());
            }
            payload.push_str(&item);
        }
        if !payload.is_empty() {
            payloads.push(payload);
        }
        payloads
    }

    fn items(&self) -> impl Iterator<Item = String> {
        let flags = [(self.hello, "H"), (self.resync, "R")];
        let flags = flags
            .into_iter()
            .filter(|(set, _)| *set)
            .map(|(_, letter)| letter.to_owned());
        let present = self.present.iter().map(|types| match types {
            Some(types) => {
                let hashes: String = types.iter().map(|hash| format!("{hash:08x}")).collect();
                format!("P{}:{hashes}", types.len())
            }
            None => "P*:".to_owned(),
        });
        let jobs = self
            .jobs
            .iter()
            .filter(|(name, _)| can_be_told(name))
            .map(|(name, count)| format!("J{count}:{}:{name}", name.as_str().len()));
        let taken = self.taken.iter().map(|((ticket, name), count)| {
            let Ticket { sender, number } = ticket;
            format!("T{sender:016x}{number:x}.{count}:{}:{name}", name.as_str().len())
        });
        let chains = self.chains.iter().map(|id| format!("C{}", id.simple()));
        let leases = self.leases.iter().map(|id| format!("L{}", id.simple()));
        flags
            .chain(present)
            .chain(jobs)
            .chain(taken)
            .chain(chains)
            .chain(leases)
    }
}

/// The library lets no other name into the store; one that reaches this place all the same must not make the whole
/// payload one that Postgres refuses.
fn can_be_told(name: &TypeName) -> bool {
    name.as_str().len() <= TypeName::MAX_LENGTH && !name.as_str().contains('\0')
}

fn add<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K, count: usize) {
    let sum = counts.entry(key).or_default();
    *sum = sum.saturating_add(count).min(MOST_JOBS);
}

/// Reads a payload: its sender and its items, up to where it stops making sense. `None` if it is not of this library.
pub(crate) fn decode(payload: &str) -> Option<(Ticket, Vec<Item>)> {
    let mut rest = Rest(payload.strip_prefix("q1")?);
    let ticket = rest.ticket()?;
    let mut items = Vec::new();
    while let Some(item) = rest.item() {
        items.push(item);
    }
    Some((ticket, items))
}

/// The part of a payload that is left to read.
struct Rest<'p>(&'p str);

impl<'p> Rest<'p> {
    /// The next bytes, unless there are fewer or they end within a character.
    fn take(&mut self, length: usize) -> Option<&'p str> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn until(&mut self, mark: char) -> Option<&'p str> {
        let (taken, rest) = self.0.split_once(mark)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<usize> {
        let digits = self.until(':')?;
        let number = digits.parse::<usize>().ok()?;
        Some(number.min(MOST_JOBS))
    }

    fn ticket(&mut self) -> Option<Ticket> {
        let sender = u64::from_str_radix(self.take(16)?, 16).ok()?;
        let number = u64::from_str_radix(self.until('.')?, 16).ok()?;
        Some(Ticket { sender, number })
    }

    fn id(&mut self) -> Option<Uuid> {
        Uuid::try_parse(self.take(32)?).ok()
    }

    fn name(&mut self) -> Option<TypeName> {
        let length = self.number()?;
        let name = self.take(length)?;
        (!name.is_empty() && length <= TypeName::MAX_LENGTH).then(|| TypeName::from(name.to_owned()))
    }

    fn item(&mut self) -> Option<Item> {
        let item = match self.take(1)? {
            "J" => {
                let count = self.number()?;
                let type_name = self.name()?;
                Item::Notice(Notice::JobsAvailable { type_name, count })
            }
            "C" => Item::Notice(Notice::ChainEnded(ChainId::from_uuid(self.id()?))),
            "L" => Item::Notice(Notice::LeaseLost(JobId::from_uuid(self.id()?))),
            "T" => {
                let ticket = self.ticket()?;
                let count = self.number()?;
                let type_name = self.name()?;
                Item::Taken {
                    ticket,
                    type_name,
                    count,
                }
            }
            "P" if self.0.starts_with("*:") => {
                self.take(2)?;
                Item::Present(None)
            }
            "P" => {
                let count = self.number()?;
                let hash = |_| u32::from_str_radix(self.take(8)?, 16).ok();
                Item::Present(Some((0..count).map(hash).collect::<Option<_>>()?))
            }
            "K" => Item::Looked(Duration::from_micros(u64::try_from(self.number()?).ok()?)),
            "W" => Item::Watched,
            "M" => Item::Missed(self.until(':')?.parse().ok()?),
            "H" => Item::Hello,
            "R" => Item::Resync,
            _ => return None,
        };
        Some(item)
    }
}

/// FNV-1a: short, and the same in every build.
pub(crate) fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The short hash by which processes tell each other what types they run. Two types with one hash cost a needless look.
pub(crate) fn type_hash(type_name: &TypeName) -> u32 {
    let hash = hash(type_name.as_str().bytes());
    #[expect(clippy::cast_possible_truncation, reason = "both halves are folded into one")]
    let short = (hash ^ (hash >> 32)) as u32;
    short
}

/// The announcement of a look, which the server sends with the look itself: the parts before and after the microseconds that
/// it took.
pub(crate) fn looked(ticket: Ticket, watches: bool) -> (String, &'static str) {
    let Ticket { sender, number } = ticket;
    let end = if watches { ":W" } else { ":" };
    (format!("q1{sender:016x}{number:x}.K"), end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> JobId {
        JobId::from_uuid(Uuid::from_u128(number))
    }

    fn jobs(name: &str, count: usize) -> Notice {
        Notice::JobsAvailable {
            type_name: TypeName::from(name.to_owned()),
            count,
        }
    }

    fn encode(batch: &Batch) -> Vec<String> {
        let mut last = 0;
        batch.encode(7, || {
            last += 1;
            last
        })
    }

    fn decode_all(payloads: &[String]) -> Vec<Item> {
        payloads
            .iter()
            .flat_map(|payload| decode(payload).expect("it is ours").1)
            .collect()
    }

    #[test]
    fn what_is_told_is_understood() {
        let ticket = Ticket {
            sender: u64::MAX,
            number: 0xabc,
        };
        let hashes = BTreeSet::from([1, u32::MAX]);
        let mut batch = Batch::default();
        batch.hello();
        batch.present(Some(hashes.clone()));
        batch.notice(&jobs("it's \"odd\":.; ü", 3));
        batch.taken(ticket, "mail".into(), 2);
        batch.notice(&Notice::ChainEnded(id(1).as_chain()));
        batch.notice(&Notice::LeaseLost(id(2)));
        let payloads = encode(&batch);
        assert_eq!(payloads.len(), 1);
        let (sender, items) = decode(&payloads[0]).expect("it is ours");
        assert_eq!(sender, Ticket { sender: 7, number: 1 });
        let expected = [
            Item::Hello,
            Item::Present(Some(hashes)),
            Item::Notice(jobs("it's \"odd\":.; ü", 3)),
            Item::Taken {
                ticket,
                type_name: "mail".into(),
                count: 2,
            },
            Item::Notice(Notice::ChainEnded(id(1).as_chain())),
            Item::Notice(Notice::LeaseLost(id(2))),
        ];
        assert_eq!(items, expected);
    }

    #[test]
    fn a_look_that_the_server_announces_is_understood() {
        let ticket = Ticket {
            sender: 7,
            number: 0xabc,
        };
        for (watches, more) in [(false, None), (true, Some(Item::Watched))] {
            let (head, tail) = looked(ticket, watches);
            let expected = [Item::Looked(Duration::from_micros(1_234))].into_iter().chain(more);
            assert_eq!(decode(&format!("{head}1234{tail}")), Some((ticket, expected.collect())));
        }
        assert_eq!(decode_all(&["q100000000000000071.M-5:".to_owned()]), [Item::Missed(-5)]);
    }

    #[test]
    fn counts_of_a_type_add_up_and_ids_are_told_once() {
        let mut batch = Batch::default();
        for _ in 0..3 {
            batch.notice(&jobs("mail", 2));
            batch.notice(&Notice::ChainEnded(id(1).as_chain()));
        }
        let mut again = Batch::default();
        again.notice(&jobs("mail", usize::MAX));
        again.notice(&Notice::ChainEnded(id(1).as_chain()));
        let items = decode_all(&encode(&batch));
        assert_eq!(
            items,
            [
                Item::Notice(jobs("mail", 6)),
                Item::Notice(Notice::ChainEnded(id(1).as_chain()))
            ]
        );
        batch.merge(again);
        assert_eq!(decode_all(&encode(&batch))[0], Item::Notice(jobs("mail", MOST_JOBS)));
    }

    #[test]
    fn payloads_stay_within_the_limit_and_lose_nothing() {
        let mut batch = Batch::default();
        for number in 0..200 {
            batch.notice(&jobs(&format!("{number:0>width$}", width = TypeName::MAX_LENGTH), 1));
        }
        for number in 0..1_000 {
            batch.notice(&Notice::LeaseLost(id(number)));
        }
        let payloads = encode(&batch);
        assert!(payloads.len() > 5);
        assert!(payloads.iter().all(|payload| payload.len() <= LIMIT));
        assert_eq!(decode_all(&payloads).len(), 1_200);
        let numbers: BTreeSet<_> = payloads
            .iter()
            .map(|payload| decode(payload).expect("ours").0)
            .collect();
        assert_eq!(numbers.len(), payloads.len());
    }

    #[test]
    fn too_much_to_tell_becomes_the_word_to_look() {
        let mut batch = Batch::default();
        for number in 0..=MOST_IDS as u128 {
            batch.notice(&Notice::ChainEnded(id(number).as_chain()));
        }
        assert_eq!(decode_all(&encode(&batch)), [Item::Resync]);
        let mut many = Batch::default();
        many.present(Some((0..=MOST_TYPES as u32).collect()));
        assert_eq!(decode_all(&encode(&many)), [Item::Present(None)]);
    }

    #[test]
    fn a_name_that_postgres_would_refuse_spoils_nothing_else() {
        let mut batch = Batch::default();
        batch.notice(&jobs("nul\0", 1));
        batch.notice(&jobs(&"n".repeat(LIMIT), 1));
        assert!(encode(&batch).is_empty());
        batch.notice(&jobs("mail", 1));
        assert_eq!(decode_all(&encode(&batch)), [Item::Notice(jobs("mail", 1))]);
    }

    #[test]
    fn garbage_is_ignored_and_never_a_panic() {
        for foreign in [
            "",
            "q",
            "q1",
            "q2",
            "hello",
            "{\"a\":1}",
            "q1zz",
            "q1ü",
            "q10000000000000007",
        ] {
            assert_eq!(decode(foreign), None, "{foreign}");
        }
        let head = "q100000000000000071.";
        for nonsense in [
            "X",
            "J",
            "J1",
            "J1:",
            "J1:9:mail",
            "J-1:4:mail",
            "J1:0:",
            "J1:1:ü",
            "C12",
            "Cü",
            "T",
            "P3:0",
            "P9999999999:",
            "Pü",
            "J99999999999999999999999999:1:a",
        ] {
            let (_, items) = decode(&format!("{head}{nonsense}")).expect("the head is ours");
            assert_eq!(items, [], "{nonsense}");
            // What was understood before counts.
            let (_, items) = decode(&format!("{head}R{nonsense}")).expect("the head is ours");
            assert_eq!(items, [Item::Resync], "{nonsense}");
        }
    }

    fn corpus() -> Vec<String> {
        let lines = include_str!("../../tests/corpus/notifications.txt").lines();
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Whatever is read can be said again, and is then read as the same.
    fn read_and_say(payload: &str) {
        let Some((_, items)) = decode(payload) else { return };
        let mut batch = Batch::default();
        for item in &items {
            match item {
                Item::Notice(notice) => batch.notice(notice),
                Item::Taken {
                    ticket,
                    type_name,
                    count,
                } => batch.taken(*ticket, type_name.clone(), *count),
                Item::Present(types) => batch.present(types.clone()),
                Item::Hello => batch.hello(),
                Item::Looked(_) | Item::Watched | Item::Missed(_) | Item::Resync => {}
            }
        }
        let said = encode(&batch);
        assert!(said.iter().all(|payload| payload.len() <= LIMIT));
        let mut again = Batch::default();
        for item in decode_all(&said) {
            if let Item::Notice(notice) = item {
                again.notice(&notice);
            }
        }
        assert_eq!(
            (&again.jobs, &again.chains, &again.leases),
            (&batch.jobs, &batch.chains, &batch.leases)
        );
    }

    #[test]
    fn the_corpus_is_survived() {
        corpus().iter().for_each(|line| read_and_say(line));
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config {
            cases: 3_000,
            failure_persistence: Some(Box::new(proptest::test_runner::FileFailurePersistence::Direct(
                concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/notifications.regressions"),
            ))),
            ..Default::default()
        })]

        #[test]
        fn anything_is_survived(text in proptest::prelude::any::<String>()) {
            read_and_say(&text);
        }

        /// Pieces of what we say, put together in any way.
        #[test]
        fn anything_that_looks_like_ours_is_survived(
            pieces in proptest::collection::vec(proptest::sample::select(corpus()), 1..5),
            cuts in proptest::collection::vec(proptest::prelude::any::<proptest::sample::Index>(), 5),
        ) {
            let mut text = String::from("q100000000000000071.");
            for (piece, cut) in pieces.iter().zip(cuts) {
                let tail = piece.strip_prefix("q100000000000000071.").unwrap_or(piece);
                let mut at = cut.index(tail.len() + 1);
                while !tail.is_char_boundary(at) {
                    at -= 1;
                }
                text.push_str(&tail[..at]);
                text.push_str(tail);
            }
            read_and_say(&text);
        }
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_survived() {
        let mut batch = Batch::default();
        batch.hello();
        batch.present(Some(BTreeSet::from([1, 2])));
        batch.notice(&jobs("mäil", 3));
        batch.notice(&Notice::LeaseLost(id(2)));
        batch.taken(Ticket { sender: 1, number: 2 }, "mäil".into(), 2);
        let payload = encode(&batch).remove(0);
        for cut in (0..payload.len()).filter(|cut| payload.is_char_boundary(*cut)) {
            let _ = decode(&payload[..cut]);
            let _ = decode(&payload[cut..]);
            for replacement in ["", ":", "9", "ü", "*", "J", "P", "."] {
                let _ = decode(&format!("{}{replacement}{}", &payload[..cut], &payload[cut..]));
            }
        }
    }
}
