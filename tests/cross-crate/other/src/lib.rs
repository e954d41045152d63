//! Job types that the cross-crate tests use from another crate.
//!
//! Compiled with the strictest lints that a user may have: derived code must give no cause for a warning.
#![deny(
    warnings,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    unnameable_types,
    unused_qualifications,
    unused_results,
    single_use_lifetimes,
    let_underscore_drop,
    clippy::pedantic
)]

use queuert::JobTypes;
use serde::{Deserialize, Serialize};

/// Charges a card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Charge {
    /// In cents.
    pub amount: u64,
}

/// Asks a person whether a charge is right.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Review;

/// What a charge comes to. Deliberately without `Debug`, which an output need not have.
#[derive(Serialize, Deserialize)]
#[allow(missing_debug_implementations, reason = "outputs need not have it")]
pub struct Receipt {
    /// The number on it.
    pub number: u32,
}

/// Takes money.
#[derive(Debug, JobTypes)]
pub enum Billing {
    /// The only way in.
    #[job(entry, output = Receipt, continues = [Review])]
    Charge(Charge),
    /// For large amounts.
    #[job(output = bool)]
    Review(Review),
}

/// The same for a private enum, nothing of which is used by hand.
mod private {
    use queuert::JobTypes;
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Begin {
        number: u32,
    }

    #[derive(Serialize, Deserialize)]
    struct End;

    #[derive(JobTypes)]
    enum Inside {
        #[job(
            entry,
            continues = [End, Begin],
            output = u8,
            retry(max_attempts = 5, initial = "10s", maximum = "5m", multiplier = 2.0, jitter = 0.1),
            lease = "60s",
            timeout = "30s",
            priority = -5,
        )]
        Begin(Begin),
        #[job(entry, output = u16, blockers = [Begin])]
        End(End),
    }
}
