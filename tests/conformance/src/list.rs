//! The list of cases, and the macros that turn it into tests.

/// Expands to one test per rule of [`StateAdapter`](queuert::adapter::StateAdapter), for the adapters that the given
/// [`StateFixture`](crate::StateFixture) makes. The expression is evaluated once per test.
#[macro_export]
macro_rules! state_conformance {
    ($fixture:expr) => {
        $crate::__cases! { state $fixture;
            blockers {
                a_job_with_an_open_blocker_is_blocked,
                a_job_with_completed_blockers_is_pending,
                every_job_of_a_batch_has_its_own_blockers,
                a_job_may_wait_for_an_earlier_chain_of_the_call,
                a_job_cannot_wait_for_what_comes_after_it,
                an_unknown_blocker_is_refused,
                a_blocker_may_be_given_twice,
                the_last_blocker_unblocks,
                a_chain_without_dependants_unblocks_nobody,
                one_call_unblocks_everyone,
                a_blocker_blocks_until_its_last_step,
                an_unblocked_job_is_scheduled_for_now,
                an_unblocked_job_keeps_a_later_time,
                a_long_blocked_job_does_not_overtake,
                a_claim_brings_the_blockers_in_order,
                every_job_of_a_claim_has_its_own_blockers,
                blockers_are_listed_as_they_are,
                a_job_that_ended_while_blocked_stays_ended,
                a_stopped_chain_still_blocks,
            }
            cancel {
                a_pending_chain_is_cancelled,
                a_blocked_chain_is_cancelled,
                a_running_chain_is_cancelled,
                the_latest_job_is_cancelled,
                the_dependants_of_a_cancelled_chain_stay_blocked,
                many_chains_are_cancelled_in_order,
                a_missing_chain_refuses_the_cancellation,
                an_ended_chain_refuses_the_cancellation,
                a_rolled_back_cancellation_never_was,
            }
            claim {
                a_claimed_job_runs_under_a_lease,
                all_jobs_of_a_claim_share_its_fence,
                a_claim_can_be_asked_for_again,
                what_has_ended_does_not_run_under_a_fence,
                a_claim_takes_up_to_its_limit,
                an_empty_store_has_nothing_to_claim,
                a_claim_of_nothing_takes_nothing,
                only_the_given_types_are_claimed,
                a_job_due_later_is_not_claimed,
                a_job_is_claimed_when_it_is_due,
                a_job_due_in_years_is_told_as_such,
                the_next_due_job_is_the_earliest_of_all_types,
                only_pending_jobs_are_due,
                an_expired_lease_is_not_claimed,
                every_type_has_its_own_lease,
                every_claim_counts,
                a_claim_skips_what_is_locked,
                what_is_locked_does_not_use_up_the_limit,
            }
            claim_bytes {
                the_first_claim_of_large_jobs_is_limited,
                a_claim_ends_before_the_first_job_that_does_not_fit,
                a_claim_that_fits_ends_at_its_limit,
                the_first_job_is_taken_whatever_it_weighs,
                every_idle_worker_has_a_job_whatever_it_weighs,
                the_bytes_of_all_types_count_together,
                the_outputs_of_blockers_count_as_expected,
                a_job_that_did_not_fit_is_as_it_was,
            }
            claim_order {
                the_older_job_is_claimed_first,
                ties_are_claimed_by_id,
                a_claim_across_types_is_in_exact_order,
                a_higher_priority_goes_first,
                extreme_priorities_keep_their_order,
                waiting_beats_priority_past_the_ageing_step,
                a_retried_job_takes_its_place_by_its_new_time,
            }
            concurrency {
                transactions_at_once_all_commit,
                reads_at_once_find_their_rows,
                transactions_and_reads_do_not_deadlock,
                claims_at_once_take_different_jobs,
                workers_at_once_run_every_job_once,
                a_deadlock_is_a_conflict,
                calls_in_opposite_order_do_not_deadlock,
                settlements_with_shared_dependants_do_not_deadlock,
                every_change_waits_for_the_lock_of_its_chain,
                who_waited_is_judged_by_what_it_finds,
            }
            continuation {
                a_continuation_is_the_next_job_of_its_chain,
                indexes_go_up_by_one,
                a_job_has_one_successor,
                of_many_continuations_at_once_one_is_applied,
                a_continuation_may_be_due_later,
                a_continuation_may_be_blocked,
                a_continuation_with_completed_blockers_is_pending,
                a_continuation_whose_id_exists_is_refused,
                a_continuation_with_an_unknown_blocker_is_refused,
                a_refused_continuation_leaves_the_transaction_usable,
                a_chain_shows_the_error_of_its_latest_job,
            }
            create_chains {
                a_chain_has_the_id_of_its_first_job,
                a_created_job_reads_back_as_it_was_written,
                a_new_job_has_no_history,
                payloads_come_back_byte_for_byte,
                a_payload_that_is_no_json_is_kept,
                a_large_payload_is_kept_whole,
                type_names_are_exact_up_to_their_longest,
                a_batch_comes_back_in_the_order_of_the_request,
                an_empty_batch_starts_nothing,
                an_id_that_exists_is_refused,
                ids_of_later_and_ended_jobs_are_taken,
                an_id_given_twice_in_a_batch_is_refused,
                a_refused_batch_starts_nothing,
                a_refused_batch_of_any_size_starts_nothing,
                a_refusal_leaves_the_transaction_usable,
                a_delay_counts_from_the_write,
                a_chosen_time_is_kept_to_the_microsecond,
                a_time_in_the_past_means_now,
                times_are_those_of_the_statement,
            }
            cycles {
                a_continuation_cannot_wait_for_its_own_chain,
                a_continuation_cannot_wait_for_who_waits_for_it,
                a_circle_through_others_is_found,
                one_of_many_blockers_closes_the_circle,
                what_is_no_circle_is_allowed,
                a_circle_from_outside_is_found,
                two_continuations_cannot_close_a_circle_together,
                two_continuations_cannot_close_a_long_circle_together,
                the_first_blocker_that_closes_a_circle_is_named,
                ways_that_meet_again_are_no_circle,
                a_wide_graph_is_searched,
                a_deep_graph_is_searched,
            }
            damaged {
                a_damaged_job_is_claimed_with_the_others_and_says_so,
                a_damaged_job_can_be_ended_by_its_attempt,
                a_damaged_job_does_not_stop_the_renewals,
                a_damaged_job_is_dead_when_its_lease_is_taken_back,
                a_damaged_job_that_is_retried_is_of_its_type,
                a_running_job_with_a_damaged_lease_is_dead_after_a_sweep,
                a_damaged_job_is_in_the_lists_with_the_others,
                a_damaged_chain_can_be_cancelled_and_deleted,
                a_chain_that_has_lost_its_state_can_only_be_deleted,
            }
            deduplication {
                a_taken_key_gives_the_chain_that_has_it,
                a_key_belongs_to_a_type,
                keys_are_exact_up_to_their_longest,
                while_open_covers_open_chains_only,
                forever_covers_ended_chains_too,
                a_chain_is_covered_until_it_ends,
                a_chain_that_was_there_shows_its_own_status,
                a_chain_that_is_left_out_does_not_count,
                the_newest_chain_is_given,
                ended_chains_count_within_the_window,
                an_open_chain_counts_past_the_window,
                a_stopped_chain_counts_within_its_window,
                a_chain_that_was_left_out_counts_for_others,
                an_earlier_chain_of_the_call_can_be_left_out,
                a_savepoint_gives_keys_back,
                an_earlier_chain_of_the_call_counts,
                keys_of_a_large_call_count_in_every_scope,
                a_matching_key_wins_over_a_supplied_id,
                a_rolled_back_start_holds_no_key,
                a_key_can_be_passed_on_within_a_transaction,
                a_second_starter_waits_for_the_first,
                a_starter_waits_for_a_key_that_is_being_freed,
                concurrent_starters_get_one_chain,
                a_retry_and_a_start_at_once_leave_one_open_chain,
            }
            delete {
                a_deleted_chain_is_gone_with_all_its_jobs,
                other_chains_are_untouched,
                missing_chains_are_skipped,
                a_chain_in_any_status_can_be_deleted,
                a_deleted_chain_gives_its_id_and_key_back,
                a_chain_that_a_job_waits_for_cannot_be_deleted,
                every_job_that_is_not_completed_keeps_its_blockers,
                a_completed_job_of_an_open_chain_keeps_nothing,
                a_continuation_keeps_its_blockers,
                every_reference_is_named,
                a_cascade_takes_the_blockers_too,
                a_cascade_never_goes_upwards,
                a_cascade_over_a_diamond_takes_each_chain_once,
                a_cascade_follows_the_blockers_of_continuations,
                a_cascade_is_refused_when_others_need_a_blocker,
                a_rolled_back_deletion_never_was,
                a_chain_under_a_reused_id_is_another_chain,
            }
            fan_in {
                two_blockers_in_overlapping_transactions_unblock_once,
                two_blockers_unblock_once_although_both_had_begun,
                a_blocker_that_rolls_back_does_not_count,
                many_blockers_at_once_unblock_once,
                a_dependant_created_while_its_blocker_completes,
                a_blocker_that_completes_while_a_dependant_is_created,
                a_dependant_created_while_its_blocker_continues,
                a_dependant_created_while_its_blocker_is_deleted,
                a_blocker_deleted_while_a_dependant_is_created,
                a_dependant_cancelled_while_its_blocker_completes,
                a_dependant_retried_while_its_blocker_completes,
                no_dependant_is_forgotten_in_a_storm,
            }
            fencing {
                a_reaped_attempt_is_refused,
                a_stale_attempt_is_refused,
                a_stale_attempt_of_the_same_worker_is_refused,
                both_attempts_of_a_process_in_one_call_have_their_own_answers,
                a_stale_attempt_with_the_same_number_is_refused,
                a_cancelled_attempt_is_refused,
                an_overtaken_attempt_is_refused,
                an_attempt_that_was_reaped_to_death_is_refused,
                the_transaction_of_a_stale_attempt_leaves_nothing,
                an_attempt_that_gave_its_job_back_cannot_write_to_the_next_one,
            }
            get {
                jobs_come_in_the_order_of_the_request,
                chains_come_in_the_order_of_the_request,
                a_later_job_is_no_chain,
                a_chain_has_the_status_of_its_latest_job,
                a_transaction_reads_what_it_wrote,
            }
            give_back {
                a_failed_attempt_is_counted_and_its_error_stored,
                a_retry_keeps_its_chosen_time,
                a_retry_in_the_past_means_now,
                the_backoff_counts_from_the_failure,
                the_latest_error_is_kept,
                a_buried_job_is_dead,
                a_released_job_keeps_its_place,
                a_release_gives_back_one_attempt,
                a_snoozed_job_spends_no_attempt,
                a_job_that_is_given_back_unblocks_nobody,
            }
            hand_over {
                a_handed_over_job_is_as_a_claim_leaves_it,
                a_handed_over_job_is_settled_under_its_fence,
                a_handed_over_job_can_be_reaped,
                what_cannot_run_now_is_not_handed_over,
                a_lost_or_refused_end_hands_nothing_over,
                ends_of_one_call_are_handed_over_one_by_one,
            }
            hold_lease {
                a_running_job_can_be_held,
                a_lost_lease_says_why,
                a_held_job_cannot_be_completed_from_outside,
                a_held_job_cannot_be_cancelled_or_deleted,
                a_held_job_is_not_reaped,
                who_waits_to_hold_sees_the_job_as_it_is_then,
            }
            isolation {
                an_uncommitted_chain_is_invisible,
                an_uncommitted_chain_cannot_be_claimed,
                an_uncommitted_end_is_invisible,
                an_uncommitted_continuation_is_invisible,
                an_uncommitted_dependant_is_invisible,
                an_uncommitted_release_is_invisible,
                a_chain_that_is_being_deleted_is_still_there,
                uncommitted_orders_of_an_operator_are_invisible,
            }
            list_chains {
                an_empty_store_lists_no_chains,
                listed_chains_are_whole,
                chains_are_listed_in_both_orders,
                chains_are_filtered_by_type,
                chains_are_filtered_by_id,
                chains_are_found_by_any_of_their_jobs,
                chains_are_filtered_by_the_status_of_their_latest_job,
                roots_are_nobodys_blockers,
                chains_are_filtered_by_the_time_of_creation,
                filters_of_chains_hold_together,
                an_empty_filter_matches_no_chain,
            }
            list_jobs {
                an_empty_store_lists_no_jobs,
                listed_jobs_are_whole,
                jobs_are_listed_in_both_orders,
                jobs_are_filtered_by_id,
                jobs_are_filtered_by_type,
                jobs_are_filtered_by_the_type_of_their_chain,
                jobs_are_filtered_by_status,
                the_jobs_of_a_chain_are_listed_by_their_place,
                the_dependants_of_a_chain_are_listed,
                jobs_are_filtered_by_the_time_of_creation,
                filters_of_jobs_hold_together,
                an_empty_filter_matches_no_job,
            }
            lock_chain {
                a_lock_returns_the_latest_job,
                an_ended_chain_can_be_locked,
                an_unknown_chain_cannot_be_locked,
                a_second_locker_waits,
                a_lock_can_be_taken_twice_by_its_transaction,
                who_waited_sees_what_the_holder_left,
                who_gives_up_waiting_leaves_no_lock,
                a_dropped_transaction_lets_go_of_its_locks,
                a_lock_holds_one_chain,
            }
            maintain {
                upkeep_changes_no_chain,
                upkeep_waits_for_no_lock,
                upkeep_may_be_dropped,
            }
            many_types {
                a_claim_of_many_types_finds_each,
                a_claim_of_many_types_is_in_exact_order,
                a_claim_of_many_types_takes_what_has_become_due,
                a_sweep_of_many_types_finds_each,
                many_types_are_sampled,
                many_types_are_listed,
            }
            outside {
                a_pending_chain_can_be_completed_from_outside,
                a_blocked_chain_can_be_completed_from_outside,
                a_running_chain_can_be_completed_from_outside,
                completion_from_outside_unblocks,
                several_steps_can_be_taken_from_outside,
                a_job_is_completed_from_outside_once,
                only_the_latest_open_job_can_be_completed_from_outside,
                completion_from_outside_after_a_settlement_is_lost,
                a_settlement_after_completion_from_outside_is_lost,
                of_many_completions_at_once_one_counts,
            }
            owners {
                the_leases_of_a_dead_owner_are_taken_back,
                the_job_of_a_dead_owner_backs_off,
                the_leases_of_a_living_owner_stay,
                a_death_is_told_to_those_who_have_not_swept_since,
                a_sweep_of_the_dead_keeps_its_limit,
                the_last_attempt_of_a_dead_owner_was_the_last,
                a_name_lives_as_long_as_one_of_its_processes,
            }
            pauses {
                a_pause_is_kept_as_it_was_written,
                a_pause_takes_the_place_of_the_one_before,
                a_deleted_pause_is_gone,
                a_pause_is_part_of_its_transaction,
                a_claim_does_not_look_at_pauses,
            }
            pages {
                pages_of_chains_add_up,
                pages_of_jobs_add_up,
                pages_of_a_chain_go_by_place,
                pages_of_dependants_add_up,
                rows_of_the_same_moment_are_neither_skipped_nor_repeated,
                rows_that_come_or_go_do_not_shift_pages,
                the_row_of_a_position_may_be_deleted,
                filters_hold_on_every_page,
                a_position_beyond_everything_gives_an_empty_page,
            }
            reap {
                an_expired_lease_is_taken_back,
                an_expired_attempt_backs_off_from_its_last_sign_of_life,
                a_job_that_was_taken_back_keeps_its_place,
                a_job_that_waits_for_its_backoff_keeps_its_place,
                a_trigger_ends_the_backoff_and_a_failure_the_place,
                a_lease_that_has_not_expired_stays,
                what_the_caller_runs_itself_is_left_alone,
                only_the_given_types_are_swept,
                the_oldest_expiry_is_taken_first,
                a_job_whose_attempts_are_exhausted_is_dead,
                a_job_may_have_its_own_number_of_attempts,
                a_job_that_died_by_the_reaper_unblocks_nobody,
                a_lease_is_taken_once,
                a_locked_row_does_not_stall_the_sweep,
                sweeps_at_the_same_moment_share_the_leases,
            }
            renew {
                a_renewed_lease_counts_from_now,
                a_longer_renewal_moves_the_end_further,
                an_expired_lease_that_nobody_took_is_renewed,
                every_renewal_of_a_batch_has_its_own_answer,
                the_lease_of_a_deleted_job_is_lost,
                the_lease_of_a_completed_job_is_lost,
                the_lease_of_a_cancelled_job_is_lost,
                the_lease_of_a_reaped_job_is_lost,
                an_ended_attempt_has_no_lease_to_renew,
                a_locked_job_is_busy,
                a_transaction_extends_what_it_holds,
                a_rolled_back_renewal_never_was,
                a_transaction_does_not_wait_to_renew,
            }
            retry {
                a_dead_chain_goes_on,
                a_cancelled_chain_goes_on,
                the_latest_job_goes_on,
                a_retried_job_waits_for_its_blockers_again,
                a_retried_job_with_completed_blockers_is_pending,
                dependants_wait_until_a_stopped_chain_completes,
                only_stopped_chains_can_be_retried,
                a_chain_whose_key_is_taken_cannot_be_retried,
                two_chains_with_one_key_cannot_both_be_retried,
                a_rolled_back_retry_never_was,
            }
            sample {
                what_is_ready_is_counted_by_type,
                a_count_ends_with_its_limit,
                the_oldest_is_the_one_that_was_due_first,
                a_sample_changes_nothing_and_waits_for_no_lock,
            }
            savepoints {
                a_released_savepoint_keeps_its_work,
                going_back_undoes_what_was_done_since,
                an_inner_savepoint_leaves_the_outer_one,
                going_back_undoes_released_inner_savepoints,
                a_depth_can_be_used_again,
                a_rollback_undoes_released_savepoints,
                going_back_undoes_settlements,
                going_back_frees_keys,
                going_back_heals_a_poisoned_transaction,
            }
            repetition {
                a_repeated_end_names_the_jobs_that_it_unblocked,
                ends_of_one_batch_name_each_job_once,
                the_end_that_others_overtook_names_nothing,
                a_job_that_was_not_unblocked_is_not_named,
                a_job_that_was_deleted_is_not_named,
                a_repeated_continuation_says_whether_its_job_was_blocked,
                a_repetition_in_a_transaction_says_the_same,
            }
            settle {
                a_finished_job_ends_its_chain,
                completion_wipes_the_error,
                the_end_is_the_time_of_the_statement,
                an_expired_lease_that_nobody_took_still_settles,
                every_settlement_of_a_batch_stands_alone,
                a_large_batch_is_settled_in_one_call,
                a_locked_chain_is_busy_and_does_not_hold_up_the_others,
                a_second_settlement_under_the_same_fence_is_repeated,
                a_repetition_unblocks_nobody_again,
                a_job_that_does_not_exist_is_lost,
                a_pending_job_has_no_fence,
                a_rolled_back_settlement_never_was,
            }
            transactions {
                a_chain_exists_if_its_transaction_commits,
                a_dropped_transaction_rolls_back,
                work_outside_survives_a_rollback,
                all_effects_of_an_end_commit_together,
                a_rolled_back_dependant_leaves_no_trace,
                a_rollback_undoes_everything,
                a_commit_keeps_everything,
                the_users_rows_and_ours_commit_together,
                a_poisoned_transaction_does_not_commit,
                transactions_may_be_empty_or_long,
                a_lost_settlement_leaves_the_transaction_usable,
                a_dropped_verb_has_happened_entirely_or_not_at_all,
            }
            trigger {
                a_triggered_job_is_due_now,
                a_trigger_changes_nothing_else,
                triggered_jobs_come_in_the_order_of_the_request,
                triggering_nothing_does_nothing,
                an_id_given_twice_is_returned_twice,
                a_missing_job_refuses_the_whole_call,
                a_job_that_is_not_pending_refuses_the_whole_call,
                a_continuation_can_be_triggered,
                a_rolled_back_trigger_never_was,
            }
            watermark {
                a_committed_job_is_passed,
                an_empty_store_has_a_watermark,
                an_uncommitted_chain_is_not_passed,
                an_uncommitted_continuation_is_not_passed,
                only_open_writers_hold_it_up,
                nothing_appears_before_the_watermark,
            }
        }
    };
}

/// Expands to one test per rule of [`NotifyAdapter`](queuert::adapter::NotifyAdapter), for the adapters that the given
/// [`NotifyFixture`](crate::NotifyFixture) makes. The expression is evaluated once per test.
#[macro_export]
macro_rules! notify_conformance {
    ($fixture:expr) => {
        $crate::__cases! { notify $fixture;
            chains {
                a_listener_of_a_chain_hears_of_its_end,
                other_chains_are_not_heard,
                every_listener_of_a_chain_hears_of_its_end,
                who_stops_listening_leaves_the_others,
                many_chains_are_heard_of,
            }
            hints {
                a_job_wakes_somebody_who_could_take_it,
                enough_jobs_wake_everybody,
                few_jobs_wake_few,
                announcements_one_by_one_spread,
                room_that_is_gained_later_counts,
                who_has_gone_uses_up_no_hint,
            }
            jobs {
                a_listener_of_a_type_hears_of_its_jobs,
                every_announcement_is_heard,
                other_types_are_not_heard,
                a_listener_of_several_types_hears_of_each,
                any_type_name_can_be_announced,
                announcing_without_listeners_is_no_error,
                participants_hear_each_other,
                a_subscription_hears_from_the_start,
                one_call_announces_many_things,
            }
            leases {
                a_listener_of_leases_hears_of_every_job,
                every_listener_of_leases_hears,
                leases_are_a_topic_of_their_own,
                who_stops_listening_for_leases_leaves_the_others,
            }
            pauses {
                every_worker_hears_of_changed_pauses,
                listeners_for_leases_beside_it_hear_nothing,
            }
            resilience {
                a_slow_subscriber_disturbs_nobody,
                subscriptions_come_and_go,
                many_tasks_at_once_lose_nothing,
                a_cut_connection_is_mended_and_told,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __cases {
    ($seam:ident $fixture:expr; $($group:ident { $($case:ident,)+ })+) => {
        $(
            mod $group {
                #[allow(unused_imports, reason = "the fixture may be named by a path of its own")]
                use super::*;

                $(
                    #[test]
                    fn $case() {
                        $crate::run(|| $fixture, $crate::$seam::$group::$case);
                    }
                )+
            }
        )+
    };
}
