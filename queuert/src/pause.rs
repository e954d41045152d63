//! Pauses of job types: what an operator says about one, as stored.

use std::fmt;

use crate::job::TypeName;
use crate::time::Timestamp;

/// A job type whose jobs no worker begins until it is [resumed](crate::Client::resume).
///
/// Jobs that run when the pause begins end as usual, and new jobs of the type can be created: they wait.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pause {
    /// The job type.
    pub type_name: TypeName,
    /// Why the type is paused, in the words of the operator.
    pub reason: Option<String>,
    /// Who paused it.
    pub author: Option<String>,
    /// When the pause began, by the store's clock.
    pub since: Timestamp,
    /// When the pause ends by itself, by the store's clock. `None`: when the type is resumed.
    pub until: Option<Timestamp>,
}

impl Pause {
    /// A pause without reason, author and end.
    pub fn new(type_name: impl Into<TypeName>, since: Timestamp) -> Self {
        Self {
            type_name: type_name.into(),
            reason: None,
            author: None,
            since,
            until: None,
        }
    }

    /// Whether the pause is in force at this time.
    pub fn is_in_force(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// One sentence without its full stop, as in "job type `charge` is paused by ada since … until …: the bank is down".
impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job type `{}` is paused", self.type_name)?;
        if let Some(author) = &self.author {
            write!(f, " by {author}")?;
        }
        write!(f, " since {}", self.since)?;
        if let Some(until) = self.until {
            write!(f, " until {until}")?;
        }
        match &self.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_says_by_whom_since_when_until_when_and_why() {
        let mut pause = Pause::new("charge", Timestamp::from_micros(0));
        assert_eq!(
            pause.to_string(),
            "job type `charge` is paused since 1970-01-01T00:00:00.000000Z"
        );
        pause.author = Some("ada".into());
        pause.until = Some(Timestamp::from_micros(1_000_000));
        pause.reason = Some("the bank is down".into());
        assert_eq!(
            pause.to_string(),
            "job type `charge` is paused by ada since 1970-01-01T00:00:00.000000Z until \
             1970-01-01T00:00:01.000000Z: the bank is down"
        );
    }
}
