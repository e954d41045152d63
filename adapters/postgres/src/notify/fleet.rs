//! Which process of the fleet looks for which announced job.
//!
//! Postgres delivers a notification to every process that listens. So that one new job does not make all of them look,
//! each process works out for itself when it is asked, from what all of them know: which processes there are, which types they
//! run, and the number of the announcement. A hash of that number orders the processes, in another order for every
//! announcement:
//!
//! - Each takes its **share** at once: of `count` jobs and `n` processes `count / n`, and the first `count % n` in the
//!   order one more. One job is thus the share of one process.
//! - A process that takes jobs **announces it**, and the jobs are taken.
//! - Jobs that no process has taken after a while, because the processes asked are busy or dead, are offered **wider**: to the
//!   next `2 × count` processes in the order, then to `4 × count` and so on, one step of time after the other.
//!
//! Announcements can be missing: a process dies between its commit and the announcement, or after it has said that it takes
//! a job; a retry becomes due while the only process that knows of it is busy. So the fleet **looks** at the store at a steady
//! pace, announced or not: one process for all of them, idle or busy, for the jobs of all types. The statement that looks also
//! tells the others. The number of that announcement orders the processes anew: the first one looks next, and if it is not
//! heard of in time, because it has died, the next two do, then four more. Due jobs that a look has found are announced like
//! new ones.
//!
//! Processes that do not know each other yet, or know too many, look once too often; that is all. Nothing here does I/O
//! or reads a clock.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use queuert::TypeName;
use tokio::time::Instant;

use crate::notify::payload::{Ticket, type_hash};

/// More open announcements than this are not waited for.
const MOST_OPEN: usize = 4_096;

/// A process announces that it is there at least this often.
const PRESENCE: Duration = Duration::from_secs(20);

/// In a large fleet less often: all of them together this often.
const PRESENCE_OF_ALL: Duration = Duration::from_millis(100);

/// Looks take this part of the time at most: a server that must keep many dead rows may take long for one.
const LOOK_SHARE: u32 = 4;

/// If the last look took this long, the server limits the time of the next one.
const LONG_LOOK: Duration = Duration::from_millis(250);

/// However long a look took, or is said to have taken, the next one is not farther away than this, or than the interval.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// So many announcements in a row of a process may be missing before it counts as gone.
const MISSES: u32 = 3;

/// The fleet, as one process knows it.
#[derive(Debug)]
pub(crate) struct Fleet {
    me: u64,
    stagger: Duration,
    /// The others.
    members: HashMap<u64, Member>,
    /// Announced jobs that no process has taken yet.
    open: HashMap<(Ticket, TypeName), Open>,
    /// When this process is asked again.
    due: BTreeSet<(Instant, Ticket, String)>,
    /// How long after a look the next one comes.
    look_interval: Duration,
    /// The last look of any process.
    look: Option<Look>,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    /// The ticket of its announcement; `None` if there was no other process, or the announcement has not come round yet.
    ticket: Option<Ticket>,
    /// How long it took the server.
    took: Duration,
}

impl Look {
    fn new(at: Instant) -> Self {
        Self {
            at,
            ticket: None,
            took: Duration::ZERO,
        }
    }
}

#[derive(Debug)]
struct Member {
    /// `None` for all.
    types: Option<BTreeSet<u32>>,
    seen: Instant,
}

#[derive(Debug)]
struct Open {
    left: usize,
    due: Instant,
}

/// Jobs that this process is asked to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) ticket: Ticket,
    pub(crate) type_name: TypeName,
    pub(crate) count: usize,
}

impl Fleet {
    pub(crate) fn new(me: u64, stagger: Duration, look_interval: Duration) -> Self {
        Self {
            me,
            stagger,
            look_interval,
            look: None,
            members: HashMap::new(),
            open: HashMap::new(),
            due: BTreeSet::new(),
        }
    }

    pub(crate) fn peers(&self) -> usize {
        self.members.len()
    }

    /// How often this process says that it is there.
    pub(crate) fn presence_interval(&self) -> Duration {
        let others = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        PRESENCE.max(PRESENCE_OF_ALL.saturating_mul(others))
    }

    /// Another process is there and runs these types.
    pub(crate) fn present(&mut self, member: u64, types: Option<BTreeSet<u32>>, now: Instant) {
        let patience = self.presence_interval() * MISSES;
        self.members
            .retain(|_, member| now.saturating_duration_since(member.seen) <= patience);
        if member == self.me {
            return;
        }
        match types {
            // It runs nothing: it only waits for chains, or is about to go.
            Some(types) if types.is_empty() => {
                self.members.remove(&member);
            }
            types => {
                self.members.insert(member, Member { types, seen: now });
            }
        }
    }

    /// Whether other processes run the type too, and so should know that a job is taken.
    pub(crate) fn is_shared(&self, type_name: &TypeName) -> bool {
        let hash = type_hash(type_name);
        self.members.values().any(|member| member.runs(hash))
    }

    /// Whether another process is known to run all of these types.
    pub(crate) fn covers(&self, member: u64, types: &BTreeSet<u32>) -> bool {
        let runs = self.members.get(&member).and_then(|member| member.types.as_ref());
        runs.is_some_and(|runs| runs.is_superset(types))
    }

    /// Jobs of a type that this process runs are announced: what it is asked to take at once, if anything.
    pub(crate) fn announced(
        &mut self,
        ticket: Ticket,
        type_name: &TypeName,
        count: usize,
        now: Instant,
    ) -> Option<Asked> {
        let hash = type_hash(type_name);
        let mine = order(ticket, hash, self.me);
        let (mut before, mut all) = (0, 1);
        for (member, known) in &self.members {
            if known.runs(hash) {
                all += 1;
                before += usize::from(order(ticket, hash, *member) < mine);
            }
        }
        if all == 1 || self.open.len() >= MOST_OPEN {
            return asked(ticket, type_name, count);
        }
        let share = count / all + usize::from(before < count % all);
        if share < count {
            let due = now + self.stagger * wave(before, count);
            self.due.insert((due, ticket, type_name.as_str().to_owned()));
            self.open.insert((ticket, type_name.clone()), Open { left: count, due });
        }
        asked(ticket, type_name, share)
    }

    /// A process, perhaps this one, takes jobs of an announcement.
    pub(crate) fn taken(&mut self, ticket: Ticket, type_name: &TypeName, count: usize) {
        let key = (ticket, type_name.clone());
        let Some(open) = self.open.get_mut(&key) else {
            return;
        };
        open.left = open.left.saturating_sub(count);
        if open.left == 0 {
            self.due.remove(&(open.due, ticket, type_name.as_str().to_owned()));
            self.open.remove(&key);
        }
    }

    /// When this process is asked next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, ..)| *due)
    }

    /// Jobs that no process has taken in time, and that this process is now asked to take.
    pub(crate) fn overdue(&mut self, now: Instant) -> Vec<Asked> {
        let mut overdue = Vec::new();
        while let Some((due, ..)) = self.due.first()
            && *due <= now
        {
            let Some((_, ticket, name)) = self.due.pop_first() else {
                break;
            };
            let type_name = TypeName::from(name);
            if let Some(open) = self.open.remove(&(ticket, type_name.clone())) {
                overdue.extend(asked(ticket, &type_name, open.left));
            }
        }
        overdue
    }

    /// Whether this process knows of no other one.
    pub(crate) fn is_alone(&self) -> bool {
        self.members.is_empty()
    }

    /// When this process is to look for due jobs, unless another one looks before. Workers look by themselves when they
    /// subscribe, so that the first time is an interval away.
    pub(crate) fn look_due(&mut self, now: Instant) -> Instant {
        let look = *self.look.get_or_insert(Look::new(now));
        let pause = look.took.saturating_mul(LOOK_SHARE).min(LONGEST_PAUSE);
        let pause = pause.max(if self.is_alone() {
            alone(self.look_interval)
        } else {
            self.look_interval
        });
        let turn = look.ticket.map_or(0, |ticket| self.turn(ticket));
        look.at + pause + self.stagger * turn
    }

    /// In which step of time it is this process's turn to look: first one process, then the next two, then four and so on.
    fn turn(&self, ticket: Ticket) -> u32 {
        let mine = order(ticket, 0, self.me);
        let before = self.members.keys().filter(|member| order(ticket, 0, **member) < mine);
        match before.count() {
            0 => 0,
            before => wave(before, 1),
        }
    }

    /// This process looks. Returns whether there is another process that should know of it.
    pub(crate) fn looks(&mut self, now: Instant) -> bool {
        self.look = Some(Look::new(now));
        !self.is_alone()
    }

    /// Whether the last look took the server long.
    pub(crate) fn looks_take_long(&self) -> bool {
        self.look.is_some_and(|look| look.took >= LONG_LOOK)
    }

    /// The look of this process took the server so long.
    pub(crate) fn look_took(&mut self, took: Duration) {
        if let Some(look) = &mut self.look {
            look.took = took;
        }
    }

    /// A process, perhaps this one, has said that it has looked.
    pub(crate) fn looked(&mut self, ticket: Ticket, took: Duration, now: Instant) {
        let own = self.look.filter(|_| ticket.sender == self.me);
        self.look = Some(Look {
            at: own.map_or(now, |look| look.at),
            ticket: Some(ticket),
            took,
        });
    }

    /// Forgets what was announced: after a gap all processes look at the store anyway.
    pub(crate) fn forget(&mut self) {
        self.open.clear();
        self.due.clear();
    }
}

/// The interval between looks of a process that is alone. It is two ninths longer, so that the process sends at most one
/// statement per second with its upkeep, which it shares with no other process either. Retries and delayed starts are on time
/// all the same, because a look sees them before they are due.
fn alone(interval: Duration) -> Duration {
    interval + interval * 2 / 9
}

impl Member {
    fn runs(&self, hash: u32) -> bool {
        self.types.as_ref().is_none_or(|types| types.contains(&hash))
    }
}

fn asked(ticket: Ticket, type_name: &TypeName, count: usize) -> Option<Asked> {
    (count > 0).then(|| Asked {
        ticket,
        type_name: type_name.clone(),
        count,
    })
}

/// In which step of time a process is asked for what others have not taken: the first `3 × count` of the order in step
/// one, twice as many more in step two, and so on.
fn wave(before: usize, count: usize) -> u32 {
    let mut wave = 1;
    let mut reach = count.saturating_mul(3);
    while before >= reach && wave < 32 {
        wave += 1;
        reach = reach.saturating_mul(2).saturating_add(count);
    }
    wave
}

/// The place of a process in the order of an announcement; splitmix64 over what makes it up.
fn order(ticket: Ticket, type_hash: u32, member: u64) -> u64 {
    [ticket.number, u64::from(type_hash), member]
        .into_iter()
        .fold(ticket.sender, |mixed, part| {
            let mut mixed = (mixed ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(30);
    const PACE: Duration = Duration::from_millis(900);

    fn mail() -> TypeName {
        "mail".into()
    }

    fn ticket(number: u64) -> Ticket {
        Ticket { sender: 99, number }
    }

    /// Processes that know each other and all run `mail`.
    fn fleet(size: u64, now: Instant) -> Vec<Fleet> {
        let types = Some(BTreeSet::from([type_hash(&mail())]));
        let mut fleet: Vec<_> = (1..=size).map(|me| Fleet::new(me, STEP, PACE)).collect();
        for one in &mut fleet {
            for other in 1..=size {
                one.present(other, types.clone(), now);
            }
        }
        fleet
    }

    fn asked_at_once(fleet: &mut [Fleet], number: u64, count: usize, now: Instant) -> Vec<usize> {
        fleet
            .iter_mut()
            .map(|one| {
                one.announced(ticket(number), &mail(), count, now)
                    .map_or(0, |asked| asked.count)
            })
            .collect()
    }

    #[test]
    fn one_job_is_the_share_of_one_process_and_not_always_the_same() {
        let now = Instant::now();
        let mut fleet = fleet(20, now);
        let mut asked = [0; 20];
        for number in 0..400 {
            let shares = asked_at_once(&mut fleet, number, 1, now);
            assert_eq!(shares.iter().sum::<usize>(), 1);
            for (total, share) in asked.iter_mut().zip(shares) {
                *total += share;
            }
        }
        assert!(asked.iter().all(|total| (5..60).contains(total)), "{asked:?}");
    }

    #[test]
    fn many_jobs_are_shared_out_evenly_and_completely() {
        let now = Instant::now();
        let mut fleet = fleet(20, now);
        for count in [2, 19, 20, 21, 1_000, 1_007] {
            let shares = asked_at_once(&mut fleet, count as u64, count, now);
            assert_eq!(shares.iter().sum::<usize>(), count);
            let (least, most) = (shares.iter().min(), shares.iter().max());
            assert!(most.copied() <= least.map(|least| least + 1), "{shares:?}");
        }
    }

    #[test]
    fn what_is_spoken_for_is_not_offered_again() {
        let now = Instant::now();
        let mut fleet = fleet(20, now);
        asked_at_once(&mut fleet, 1, 3, now);
        for one in &mut fleet {
            one.taken(ticket(1), &mail(), 2);
            assert!(one.next_due().is_some());
            one.taken(ticket(1), &mail(), 1);
            assert_eq!(one.next_due(), None);
            assert!(one.overdue(now + STEP * 99).is_empty());
        }
    }

    #[test]
    fn what_nobody_takes_is_offered_wider_step_by_step() {
        let now = Instant::now();
        let mut fleet = fleet(20, now);
        asked_at_once(&mut fleet, 1, 1, now);
        let mut asked = Vec::new();
        for step in 1..=6 {
            let overdue = fleet.iter_mut().flat_map(|one| one.overdue(now + STEP * step));
            asked.push(overdue.map(|asked| asked.count).sum::<usize>());
        }
        // After the first of the order the next two, then four, then eight, then the rest.
        assert_eq!(asked, [2, 4, 8, 5, 0, 0]);
        assert!(fleet.iter().all(|one| one.next_due().is_none()));
    }

    /// The processes that look until `end`, each with the time of its look; those in `mute` are dead.
    fn looks(fleet: &mut [Fleet], mute: &[u64], begun: Instant, end: Instant) -> Vec<(u64, Duration)> {
        let (mut looks, mut now, mut number) = (Vec::new(), begun, 0);
        for one in &mut *fleet {
            one.look_due(begun);
        }
        while now < end {
            let mut said = Vec::new();
            for one in fleet.iter_mut().filter(|one| !mute.contains(&one.me)) {
                if one.look_due(now) <= now {
                    one.looks(now);
                    looks.push((one.me, now - begun));
                    number += 1;
                    let ticket = Ticket { sender: one.me, number };
                    said.push(ticket);
                }
            }
            // Within a millisecond everybody has heard.
            now += Duration::from_millis(1);
            for ticket in said {
                fleet
                    .iter_mut()
                    .for_each(|one| one.looked(ticket, Duration::from_millis(1), now));
            }
        }
        looks
    }

    #[test]
    fn a_fleet_looks_at_a_steady_pace_and_takes_turns() {
        let now = Instant::now();
        let mut fleet = fleet(20, now);
        let looks = looks(&mut fleet, &[], now, now + PACE * 100);
        // The first time nobody is first in an order, and all of them look.
        let steady: Vec<_> = looks.iter().filter(|(_, at)| *at > PACE).collect();
        assert!((95..=100).contains(&steady.len()), "{}", steady.len());
        let who: BTreeSet<u64> = steady.iter().map(|(who, _)| *who).collect();
        assert!(who.len() > 10, "always the same ones: {who:?}");
    }

    #[test]
    fn processes_with_different_types_look_for_each_other() {
        let now = Instant::now();
        let mut fleet: Vec<_> = (1..=5).map(|me| Fleet::new(me, STEP, PACE)).collect();
        for one in &mut fleet {
            for other in 1..=5u32 {
                one.present(other.into(), Some(BTreeSet::from([other])), now);
            }
        }
        let looks = looks(&mut fleet, &[], now, now + PACE * 100);
        let steady = looks.iter().filter(|(_, at)| *at > PACE).count();
        assert!((95..=100).contains(&steady), "{steady}");
    }

    #[test]
    fn one_living_process_among_dead_ones_looks_in_time() {
        let now = Instant::now();
        let mut fleet = fleet(20, now);
        let dead: Vec<u64> = (2..=20).collect();
        let looks = looks(&mut fleet, &dead, now, now + PACE * 50);
        let mut last = Duration::ZERO;
        for (_, at) in looks {
            assert!(at - last <= PACE + STEP * 5, "{:?} without a look", at - last);
            last = at;
        }
        assert!(last > PACE * 40);
    }

    #[test]
    fn a_process_that_is_alone_looks_and_tells_nobody() {
        let now = Instant::now();
        let mut alone = Fleet::new(1, STEP, PACE);
        let pace = super::alone(PACE);
        assert!(pace <= Duration::from_millis(1_100), "{pace:?}");
        assert_eq!(alone.look_due(now), now + pace);
        assert!(!alone.looks(now + pace));
        assert_eq!(alone.look_due(now + PACE), now + pace * 2);
    }

    #[test]
    fn looks_that_take_long_come_less_often_in_the_whole_fleet() {
        let now = Instant::now();
        let mut fleet = fleet(2, now);
        fleet[0].looks(now);
        fleet[0].look_took(PACE);
        assert_eq!(fleet[0].look_due(now), now + PACE * LOOK_SHARE);
        let ticket = Ticket { sender: 1, number: 5 };
        for one in &mut fleet {
            one.looked(ticket, PACE, now);
            let due = one.look_due(now);
            assert!((now + PACE * LOOK_SHARE..=now + PACE * LOOK_SHARE + STEP).contains(&due));
            one.looked(ticket, Duration::from_secs(3_600), now);
            assert!(
                one.look_due(now) <= now + LONGEST_PAUSE + STEP,
                "any program may say anything"
            );
        }
    }

    #[test]
    fn who_runs_other_types_is_not_counted() {
        let now = Instant::now();
        let mut one = Fleet::new(1, STEP, PACE);
        one.present(2, Some(BTreeSet::from([type_hash(&"other".into())])), now);
        assert!(!one.is_shared(&mail()));
        for number in 0..20 {
            assert!(one.announced(ticket(number), &mail(), 1, now).is_some());
        }
        // One that runs too many types to name them counts for all.
        one.present(3, None, now);
        assert!(one.is_shared(&mail()));
        one.present(3, Some(BTreeSet::new()), now);
        assert!(!one.is_shared(&mail()), "it said that it runs nothing any more");
    }

    #[test]
    fn who_is_not_heard_of_any_more_counts_as_gone() {
        let now = Instant::now();
        let mut one = Fleet::new(1, STEP, PACE);
        one.present(2, None, now);
        one.present(3, None, now + PRESENCE * 2);
        assert_eq!(one.members.len(), 2);
        one.present(3, None, now + PRESENCE * 4);
        assert_eq!(one.members.len(), 1);
    }

    #[test]
    fn memory_is_bounded() {
        let now = Instant::now();
        let mut fleet = fleet(2, now);
        for number in 0..2 * MOST_OPEN as u64 {
            fleet[0].announced(ticket(number), &mail(), 1, now);
        }
        assert!(fleet[0].open.len() <= MOST_OPEN && fleet[0].due.len() <= MOST_OPEN);
        fleet[0].forget();
        assert_eq!(fleet[0].next_due(), None);
    }

    #[test]
    fn a_large_fleet_says_less_often_that_it_is_there() {
        let now = Instant::now();
        let mut one = Fleet::new(0, STEP, PACE);
        assert_eq!(one.presence_interval(), PRESENCE);
        for member in 1..=1_000 {
            one.present(member, None, now);
        }
        assert_eq!(one.presence_interval(), PRESENCE_OF_ALL * 1_000);
    }
}
