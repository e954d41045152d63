//! How long chains that have ended are kept.

use std::collections::BTreeMap;
use std::time::Duration;

use queuert::TypeName;

/// How long chains that have ended are kept, by the type of the chain, counted from their end.
///
/// Completed and cancelled chains are deleted by running workers when they are older than that; dead ones only if
/// [`dead_too`](Self::dead_too) says so, because an operator may still want to retry them. A chain stays for as long as a
/// job that is not completed has it as blocker.
///
/// ```
/// use std::time::Duration;
/// use queuert_postgres::{PostgresState, Retention};
///
/// const DAY: Duration = Duration::from_secs(86_400);
/// let options = PostgresState::options()
///     .retention(Retention::of(30 * DAY).of_type("send_mail", DAY).forever_of_type("invoice"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Retention {
    all: Option<Duration>,
    types: BTreeMap<TypeName, Option<Duration>>,
    dead: bool,
}

impl Retention {
    /// Everything is kept, except for the types that are given an age.
    pub fn forever() -> Self {
        Self::default()
    }

    /// Whether nothing is ever deleted.
    pub(crate) fn is_forever(&self) -> bool {
        self.all.is_none() && self.types.values().all(Option::is_none)
    }

    /// Chains of all types are kept for this long.
    pub fn of(age: Duration) -> Self {
        Self {
            all: Some(age),
            ..Self::default()
        }
    }

    /// Chains of this type are kept for this long. Default: as those of all types.
    pub fn of_type(mut self, chain_type: impl Into<TypeName>, age: Duration) -> Self {
        self.types.insert(chain_type.into(), Some(age));
        self
    }

    /// Chains of this type are kept for ever. Default: as those of all types.
    pub fn forever_of_type(mut self, chain_type: impl Into<TypeName>) -> Self {
        self.types.insert(chain_type.into(), None);
        self
    }

    /// Dead chains are deleted too. Default: they are kept.
    pub fn dead_too(mut self) -> Self {
        self.dead = true;
        self
    }

    /// The age for chains of this type; `None` if they are kept for ever.
    pub(crate) fn age(&self, chain_type: &TypeName) -> Option<Duration> {
        self.types.get(chain_type).copied().unwrap_or(self.all)
    }

    pub(crate) fn deletes_dead(&self) -> bool {
        self.dead
    }

    /// The shortest age of any type; `None` if everything is kept for ever.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.types.values().copied().chain([self.all]).flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_of_its_own_goes_before_all_types() {
        let (day, hour) = (Duration::from_secs(86_400), Duration::from_secs(3_600));
        let retention = Retention::of(day).of_type("mail", hour).forever_of_type("invoice");
        assert_eq!(retention.age(&"mail".into()), Some(hour));
        assert_eq!(retention.age(&"invoice".into()), None);
        assert_eq!(retention.age(&"other".into()), Some(day));
        assert_eq!(retention.shortest(), Some(hour));
        assert_eq!(Retention::forever().shortest(), None);
        assert_eq!(Retention::forever().of_type("mail", hour).age(&"other".into()), None);
    }
}
