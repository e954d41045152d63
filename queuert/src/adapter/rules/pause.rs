//! What pausing a job type writes.

use crate::pause::Pause;
use crate::time::Timestamp;

/// The pause to store when an operator asks for `wanted` at `now`; `None` if it would end before it begins.
///
/// A pause that is in force goes on: it keeps its beginning, and has the reason, the author and the end of the new one.
pub fn pause(existing: Option<&Pause>, wanted: Pause, now: Timestamp) -> Option<Pause> {
    if !wanted.is_in_force(now) {
        return None;
    }
    let existing = existing.filter(|pause| pause.is_in_force(now));
    let since = existing.map_or(now, |pause| pause.since);
    Some(Pause { since, ..wanted })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::rules::tests::NOW;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(NOW.as_micros() + micros)
    }

    fn paused(since: i64, until: Option<i64>) -> Pause {
        let mut pause = Pause::new("mail", at(since));
        pause.until = until.map(at);
        pause
    }

    #[test]
    fn a_pause_begins_now_or_goes_on_and_never_ends_before_it_begins() {
        // What is stored, the wanted end, and the stored beginning and end that follow.
        let cases = [
            (None, None, Some((0, None))),
            (None, Some(5), Some((0, Some(5)))),
            (None, Some(0), None),
            (None, Some(-5), None),
            (Some((-9, None)), None, Some((-9, None))),
            (Some((-9, None)), Some(5), Some((-9, Some(5)))),
            (Some((-9, Some(5))), None, Some((-9, None))),
            // The earlier pause is over, so this one begins now.
            (Some((-9, Some(0))), None, Some((0, None))),
            (Some((-9, Some(-1))), Some(7), Some((0, Some(7)))),
            (Some((-9, None)), Some(0), None),
        ];
        for (existing, until, expected) in cases {
            let existing = existing.map(|(since, until)| paused(since, until));
            let found = pause(existing.as_ref(), paused(77, until), NOW);
            let expected = expected.map(|(since, until)| paused(since, until));
            assert_eq!(found, expected, "{existing:?} {until:?}");
        }
    }

    #[test]
    fn a_pause_that_goes_on_has_the_new_reason_and_author() {
        let mut old = paused(-9, None);
        old.reason = Some("old".into());
        old.author = Some("ada".into());
        let mut new = paused(0, None);
        new.reason = Some("new".into());
        let stored = pause(Some(&old), new, NOW).unwrap();
        assert_eq!((stored.reason.as_deref(), stored.author), (Some("new"), None));
    }
}
