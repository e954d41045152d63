//! What the client promises.
//!
//! One file per subject. Run all cases with [`client_behaviour!`](crate::client_behaviour).

mod jobs;
mod probe;
mod recorder;

pub mod announcements;
pub mod bad_input;
pub mod cancel;
pub mod deduplication;
pub mod delete;
pub mod ended;
pub mod events;
pub mod follow;
pub mod foreign;
pub mod get;
pub mod kept;
pub mod keys;
pub mod list_chains;
pub mod list_jobs;
pub mod open;
pub mod open_refused;
pub mod pages;
pub mod pause;
pub mod payloads;
pub mod retry;
pub mod runtimes;
pub mod savepoints;
pub mod schedule;
pub mod side_by_side;
pub mod spans;
pub mod start_many;
pub mod start_one;
pub mod transactions;
pub mod trigger;
pub mod unfinished;
pub mod wait;

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

/// Of a batch, the item at this place was refused for this reason.
macro_rules! assert_item_refused {
    ($result:expr, $place:expr, $pattern:pat $(if $guard:expr)?) => {
        match $result {
            Err(queuert::Error::InBatch { index, id, source }) => {
                assert_eq!(index, $place, "the place of {id} in the batch: {source}");
                $crate::behaviour::client::assert_error!(Err::<(), _>(*source), $pattern $(if $guard)?);
            }
            other => panic!("expected a refused item, but got {other:?}"),
        }
    };
}
use assert_item_refused;

/// Runs every case of the client's behaviour, as one test each.
///
/// Takes an expression that makes a [`PairFixture`](crate::PairFixture); it is evaluated for each test.
///
/// `CLIENT_CASES.md` in this crate says which case covers which rule of the original.
#[macro_export]
macro_rules! client_behaviour {
    ($fixture:expr) => {
        $crate::__client_behaviour_tests! { $fixture;
            announcements {
                a_transaction_announces_what_is_there,
                a_request_announces_what_is_there,
            }
            bad_input {
                an_undecodable_input_names_its_row,
                undecodable_rows_are_listed,
                an_undecodable_job_dies_alone,
                an_undecodable_output_names_its_row,
                an_output_of_the_wrong_end_is_undecodable,
                an_undecodable_blocker_is_named,
                unknown_types_are_left_alone,
                any_text_goes_through_unharmed,
                asking_for_nothing_changes_nothing,
            }
            cancel {
                a_pending_chain_is_cancelled,
                only_the_current_job_is_cancelled,
                a_running_attempt_is_told,
                a_running_attempt_cannot_commit,
                dependants_stay_blocked,
                a_cancelled_blocker_blocks,
                a_blocked_chain_is_cancelled,
                an_ended_chain_cannot_be_cancelled,
                a_batch_is_cancelled_as_a_whole,
                a_rolled_back_cancellation_changes_nothing,
            }
            deduplication {
                one_key_is_one_chain,
                an_ended_chain_frees_its_key,
                a_stopped_chain_frees_its_key,
                a_deleted_chain_does_not_count,
                a_window_passes_for_ended_chains,
                an_ended_chain_counts_within_its_window,
                each_type_has_its_own_keys,
                a_key_twice_in_a_batch_is_one_chain,
                a_batch_finds_existing_chains,
                each_chain_of_a_batch_has_its_own_scope,
                behind_a_window_a_batch_starts_one_chain,
                excepted_chains_do_not_count,
                types_are_told_apart_within_a_batch,
                a_chain_holds_its_key_until_it_ends,
                a_blocked_chain_holds_its_key,
                the_newest_chain_that_counts_is_given,
                a_found_key_makes_the_rest_irrelevant,
            }
            delete {
                a_deleted_chain_is_gone,
                the_status_is_that_of_the_latest_job,
                a_running_attempt_is_told,
                a_running_attempt_cannot_commit,
                a_blocker_is_protected,
                a_blocker_is_protected_until_it_was_read,
                a_cascade_goes_down_only,
                without_a_cascade_blockers_stay,
                a_cascade_is_transitive,
                a_cascade_is_refused_for_another_dependant,
                a_cascade_may_have_nothing_to_follow,
                a_cascade_follows_continuations,
                unknown_chains_are_skipped,
                dependants_of_a_batch_protect_their_blocker,
                a_chain_does_not_protect_itself,
                a_rolled_back_deletion_changes_nothing,
            }
            ended {
                nothing_is_written_in_a_transaction_that_has_ended,
                nothing_is_written_behind_an_abandoned_statement_that_ends_the_transaction,
                the_commit_of_a_transaction_that_has_ended_is_refused,
                no_chain_is_completed_in_a_transaction_that_has_ended,
                a_savepoint_in_which_the_transaction_ends_fails,
                nothing_is_written_in_a_foreign_transaction_that_has_ended,
            }
            events {
                starting,
                starting_a_batch,
                deduplicating,
                finishing_from_outside,
                continuing_from_outside,
                triggering,
                cancelling_and_deleting,
                retrying,
                reading_is_silent,
                the_stream_hears_the_same,
            }
            spans {
                a_span_ends_with_the_commit,
                a_rolled_back_span_is_dropped,
                a_refused_start_drops_its_span,
                a_deduplicated_start_says_so,
                completion_from_outside_has_a_span,
            }
            follow {
                chains_are_followed,
                a_late_commit_is_not_missed,
                a_late_continuation_is_not_missed,
                an_empty_store_is_followed,
                blocked_jobs_are_followed,
                a_change_is_not_given_again,
                a_follower_cannot_be_led_astray,
                every_chain_is_followed_once,
            }
            foreign {
                effects_are_published_by_the_caller,
                dropped_effects_are_left_to_the_polls,
                a_foreign_rollback_leaves_nothing,
                a_chain_is_completed_in_a_foreign_transaction,
                a_transaction_may_be_adopted_again,
            }
            get {
                an_unknown_chain_is_nothing,
                a_chain_reads_typed_and_untyped,
                a_chain_of_another_type_is_refused,
                an_unknown_job_is_nothing,
                a_job_reads_typed_and_untyped,
                a_job_of_another_type_is_refused,
                a_job_may_have_no_blockers,
                blockers_come_in_their_order,
                blockers_read_as_they_are_now,
                both_sides_see_each_other,
                all_reads_agree,
                readers_outside_see_committed_work_only,
            }
            kept {
                a_kept_start_holds_up_no_other,
                a_kept_begin_holds_up_no_other,
                kept_reads_and_waits_hold_up_no_other,
                a_kept_end_holds_up_no_other,
                a_verb_kept_at_any_poll_holds_up_no_other,
                a_kept_first_start_of_a_type_holds_up_no_other,
                a_call_dropped_at_any_poll_leaves_nothing_behind,
            }
            keys {
                concurrent_starters_get_one_chain,
                a_starter_waits_for_one_that_commits,
                a_starter_waits_for_one_that_rolls_back,
                a_transaction_sees_its_own_keys,
                keys_are_compared_byte_by_byte,
                bad_keys_are_refused,
                the_longest_key_counts_in_full,
            }
            list_chains {
                an_empty_store_has_none,
                the_newest_comes_first,
                chains_are_filtered_by_type,
                chains_are_filtered_by_id,
                roots_are_nobodys_blocker,
                chains_are_filtered_by_status,
                chains_are_filtered_by_time,
                filters_narrow_one_another,
                an_empty_filter_admits_nothing,
            }
            list_jobs {
                an_empty_store_has_none,
                the_newest_comes_first,
                jobs_are_filtered_by_type,
                a_name_that_no_type_has_matches_nothing,
                jobs_are_filtered_by_id,
                jobs_are_filtered_by_status,
                jobs_are_filtered_by_time,
                an_empty_filter_admits_nothing,
                the_jobs_of_a_chain_come_in_order,
                an_unknown_chain_has_no_jobs,
                listed_jobs_read_typed,
                blocked_jobs_are_listed,
            }
            open {
                a_chain_is_finished_from_outside,
                several_steps_are_walked,
                a_chain_is_opened_where_it_stands,
                a_worker_goes_on_after_an_approval,
                either_branch_can_be_taken,
                a_loop_can_be_walked,
                a_dropped_job_changes_nothing,
                a_running_attempt_is_told,
                a_running_attempt_cannot_commit,
                a_blocked_job_can_be_completed,
                the_end_unblocks_what_waits,
                a_rollback_leaves_everything_as_it_was,
                a_second_opener_waits_for_the_first,
            }
            open_refused {
                an_ended_chain_cannot_be_opened,
                a_missing_chain_is_not_found,
                another_type_is_not_opened,
                a_continuation_may_have_a_supplied_id,
                a_continuation_may_be_blocked,
                a_circle_is_refused,
                what_is_no_json_is_refused,
            }
            pages {
                chains_come_in_pages,
                a_full_last_page_has_no_cursor,
                jobs_come_in_pages,
                the_jobs_of_a_chain_come_in_pages,
                blocked_jobs_come_in_pages,
                fifty_rows_make_a_page,
                a_page_has_one_to_a_thousand_rows,
                a_cursor_goes_through_text,
                a_cursor_belongs_to_its_query,
                garbage_is_no_cursor,
                pages_are_stable_under_inserts,
                pages_are_stable_under_deletions,
                rows_of_one_instant_come_once,
            }
            pause {
                a_pause_says_who_why_and_until_when,
                a_pause_goes_on_with_another_reason,
                resuming_says_what_ended,
                an_unknown_name_is_refused,
                bad_pauses_are_refused,
                a_pause_commits_with_its_transaction,
                a_drain_leaves_paused_types_out,
                a_pause_is_an_event,
            }
            payloads {
                what_is_stored_comes_back_equal,
                what_could_not_come_back_is_refused,
                an_output_that_could_not_come_back_ends_its_job,
            }
            retry {
                a_dead_chain_goes_on,
                a_cancelled_chain_goes_on_where_it_stood,
                a_blocked_chain_is_blocked_again,
                only_stopped_chains_can_be_retried,
                a_taken_key_refuses_the_retry,
                one_key_is_retried_once,
                a_retried_chain_holds_its_key,
                a_batch_is_retried_as_a_whole,
                a_rolled_back_retry_changes_nothing,
            }
            runtimes {
                a_runtime_ends_with_calls_inside,
                a_store_outlives_its_runtime,
                every_call_may_have_a_runtime_of_its_own,
            }
            savepoints {
                success_keeps_writes_and_effects,
                failure_drops_writes_and_effects,
                a_failed_savepoint_can_be_tried_again,
                an_inner_failure_leaves_the_outer_intact,
                an_outer_failure_undoes_the_inner,
                a_rollback_undoes_the_savepoints,
                a_refusal_undoes_its_savepoint_only,
                a_completion_is_undone,
                ids_and_keys_are_free_again,
                operations_are_undone,
            }
            schedule {
                a_delay_passes_before_it_runs,
                a_time_comes_before_it_runs,
                a_worker_takes_it_when_it_is_due,
                a_delay_is_measured_from_the_write,
                a_past_time_means_now,
                a_continuation_has_a_schedule_of_its_own,
                a_recurring_job_starts_its_successor,
                an_unblocked_chain_is_scheduled_then,
                a_far_future_disturbs_nobody,
            }
            side_by_side {
                enums_share_a_client_and_a_worker,
                a_worker_leaves_other_enums_alone,
                a_handle_can_be_made_from_an_id,
            }
            start_many {
                a_batch_keeps_its_order,
                an_empty_batch_starts_nothing,
                a_batch_may_share_a_blocker,
                a_batch_may_mix_schedules,
                different_types_start_together,
                a_batch_may_mix_blocked_and_unblocked,
                a_chain_may_wait_for_an_earlier_one_of_its_batch,
                workers_complete_dependants_with_the_outputs,
                workers_complete_a_whole_batch,
                a_batch_may_supply_some_ids,
                one_taken_id_refuses_the_batch,
                a_refused_item_is_named,
                an_id_twice_in_a_batch_is_refused,
                one_missing_blocker_refuses_the_batch,
                one_bad_key_refuses_the_batch,
                a_refused_batch_leaves_no_key_behind,
                a_batch_may_be_large,
            }
            start_one {
                a_started_chain_is_pending_with_its_input,
                the_first_job_has_the_id_of_its_chain,
                ids_sort_by_creation,
                a_supplied_id_names_the_chain,
                a_taken_id_is_refused,
                the_id_of_a_later_job_is_taken,
                a_chain_with_an_open_blocker_is_blocked,
                a_chain_whose_blockers_completed_is_pending,
                a_missing_blocker_is_refused,
                a_later_job_is_no_blocker,
                a_blocker_given_twice_blocks_once,
                any_number_of_blockers_may_be_none,
                the_priority_of_the_request_wins,
                the_number_of_attempts_is_stored,
                zero_attempts_are_refused,
                an_input_that_is_no_json_is_refused,
                the_trace_context_is_stored,
            }
            transactions {
                nothing_is_announced_before_the_commit,
                nothing_is_announced_after_a_rollback,
                a_dropped_transaction_is_rolled_back,
                an_empty_transaction_is_silent,
                every_operation_holds_its_effects,
                a_refused_request_holds_nothing,
                transactions_do_not_mix,
                own_writes_commit_with_the_chains,
                work_that_succeeds_is_committed,
                work_that_fails_is_rolled_back,
                work_that_is_cut_short_is_rolled_back,
                a_panicking_observability_adapter_hurts_nobody,
                a_failing_notify_adapter_hurts_nobody,
            }
            trigger {
                a_later_job_becomes_due_now,
                a_triggered_job_is_run,
                a_backoff_can_be_cut_short,
                a_due_job_keeps_its_place,
                a_missing_job_is_not_found,
                only_pending_jobs_can_be_triggered,
                a_batch_keeps_its_order,
                an_empty_batch_does_nothing,
                a_job_named_twice_is_triggered_once,
                one_missing_job_refuses_the_batch,
                one_completed_job_refuses_the_batch,
                a_rolled_back_trigger_changes_nothing,
            }
            unfinished {
                a_dropped_request_is_committed_entirely_or_not_at_all,
                a_transaction_with_a_dropped_request_can_be_rolled_back,
                a_savepoint_undoes_a_dropped_request,
                a_dropped_savepoint_is_committed_entirely_or_not_at_all,
                an_outer_savepoint_undoes_a_dropped_inner_one,
                a_dropped_commit_happens_entirely_or_not_at_all,
                a_dropped_request_is_undone_in_a_foreign_transaction,
                a_foreign_transaction_goes_on_after_a_dropped_request,
            }
            wait {
                an_ended_chain_is_given_at_once,
                an_end_is_noticed_by_every_waiter,
                the_output_is_that_of_the_last_job,
                a_notice_wakes_the_wait,
                a_timeout_ends_the_wait_only,
                a_timeout_of_zero_looks_once,
                an_end_at_the_deadline_counts,
                a_dead_chain_gives_its_failure,
                a_cancelled_chain_gives_that,
                a_chain_deleted_meanwhile_is_not_found,
                an_unknown_chain_is_not_found,
                a_chain_of_another_type_is_refused,
                a_dropped_wait_leaves_the_chain_alone,
                an_uncommitted_end_is_no_end,
                no_subscription_is_left_behind,
                a_broken_notify_adapter_costs_latency_only,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __client_behaviour_tests {
    ($fixture:expr; $($subject:ident { $($case:ident,)+ })+) => {
        $(mod $subject {
            #[allow(unused_imports, reason = "the expression may name everything in full")]
            use super::*;

            $(
                #[test]
                fn $case() {
                    $crate::run(|| $fixture, $crate::behaviour::client::$subject::$case);
                }
            )+
        })+
    };
}
