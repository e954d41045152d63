//! What the client promises.
//!
//! One file per subject. Run all cases with [`client_behaviour!`](crate::client_behaviour).

mod jobs;
mod probe;
mod recorder;

pub mod start_many;
pub mod start_one;

/// Fails unless the result is an error of this shape.
macro_rules! assert_error {
    ($result:expr, $pattern:pat $(if $guard:expr)?) => {
        match $result {
            Err($pattern) $(if $guard)? => {}
            other => panic!("expected {}, but got {other:?}", stringify!($pattern $(if $guard)?)),
        }
    };
}
use assert_error;

/// Runs every case of the client's behaviour, as one test each.
///
/// Takes an expression that makes a [`PairFixture`](crate::PairFixture); it is evaluated for each test.
///
/// ```ignore
/// mod client {
///     queuert_conformance::client_behaviour!(super::Fixture);
/// }
/// ```
#[macro_export]
macro_rules! client_behaviour {
    ($fixture:expr) => {
        $crate::__client_behaviour_tests! { $fixture;
            start_one {
                a_started_chain_is_pending_with_its_input
                the_first_job_has_the_id_of_its_chain
                ids_sort_by_creation
                a_supplied_id_names_the_chain
                a_taken_id_is_refused
                the_id_of_a_later_job_is_taken
                a_chain_with_an_open_blocker_is_blocked
                a_chain_whose_blockers_completed_is_pending
                a_missing_blocker_is_refused
                a_later_job_is_no_blocker
                a_blocker_given_twice_blocks_once
                any_number_of_blockers_may_be_none
                the_priority_of_the_request_wins
                the_number_of_attempts_is_stored
                zero_attempts_are_refused
                an_input_that_is_no_json_is_refused
                the_trace_context_is_stored
            }
            start_many {
                a_batch_keeps_its_order
                an_empty_batch_starts_nothing
                a_batch_may_share_a_blocker
                a_batch_may_mix_schedules
                different_types_start_together
                a_batch_may_mix_blocked_and_unblocked
                a_chain_may_wait_for_an_earlier_one_of_its_batch
                workers_complete_dependants_with_the_outputs
                workers_complete_a_whole_batch
                a_batch_may_supply_some_ids
                one_taken_id_refuses_the_batch
                an_id_twice_in_a_batch_is_refused
                one_missing_blocker_refuses_the_batch
                one_bad_key_refuses_the_batch
                a_refused_batch_leaves_no_key_behind
                a_batch_may_be_large
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __client_behaviour_tests {
    ($fixture:expr; $($subject:ident { $($case:ident)* })*) => {
        $(mod $subject {
            #[allow(unused_imports, reason = "the expression may name everything in full")]
            use super::*;

            $(
                #[test]
                fn $case() {
                    $crate::run(|| $fixture, $crate::behaviour::client::$subject::$case);
                }
            )*
        })*
    };
}
