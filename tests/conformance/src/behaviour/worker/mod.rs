//! What workers promise.
//!
//! Every case runs on a store whose calls are counted and can be made to fail, see [`Faulty`](crate::Faulty).

pub mod aborts;
pub mod ahead;
pub mod bad_rows;
pub mod blockers;
pub mod building;
pub mod chains;
pub mod draining;
pub mod events;
pub mod failures;
pub mod hand_over;
pub mod leases;
pub mod lost_answers;
pub mod middlewares;
pub mod observed;
pub mod outages;
pub mod own_transactions;
pub mod panics;
pub mod pausing;
pub mod processing;
pub mod processors;
pub mod quiet;
pub mod reaping;
pub mod refusals;
pub mod resilience;
pub mod retries;
pub mod scheduling;
pub mod stopping;
pub mod transaction_hooks;
mod types;
pub mod wakeups;
mod world;

/// Runs every case about workers against a [`PairFixture`](crate::PairFixture), one test per rule.
///
/// Give it an expression that makes a fixture, in a module of your tests; it is evaluated once per case.
/// `WORKER_CASES.md` in this crate says which case covers which rule of the original.
#[macro_export]
macro_rules! worker_behaviour {
    ($fixture:expr) => {
        $crate::__worker_cases! { $fixture;
            chains {
                a_job_started_before_the_worker_runs,
                a_job_started_while_the_worker_runs_runs,
                one_worker_runs_several_types,
                three_steps_are_one_chain,
                a_branch_is_chosen_by_the_processor,
                a_loop_ends_when_its_processor_says_so,
                a_chain_may_go_back,
                a_shared_step_sees_the_type_of_its_chain,
                a_chain_started_in_a_processor_is_independent,
                a_continuation_may_have_a_supplied_id,
                a_continuation_with_a_taken_id_is_a_failure,
                the_steps_of_a_chain_run_on_different_workers,
                a_job_of_an_unknown_type_is_never_claimed,
                many_chains_complete_each_job_once,
            }
            blockers {
                a_dependant_runs_after_the_last_step,
                a_blocker_that_completed_before_blocks_nothing,
                chains_started_in_any_phase_complete,
                outputs_come_in_the_declared_order,
                blockers_of_different_types_are_read_by_type,
                a_continuation_waits_for_chains_of_its_own_transaction,
                two_dependants_of_one_blocker_both_run,
                unblocking_moves_the_schedule_to_now,
                fan_in_of_many_is_exact,
                a_dependant_attached_while_its_blocker_continues_waits,
                dependants_of_a_dead_chain_wait_for_its_retry,
                dependants_of_a_cancelled_chain_wait_for_its_retry,
                a_circle_of_blockers_is_fatal,
                a_chain_of_another_type_is_fatal,
                a_blocker_of_another_type_is_fatal,
            }
            ahead {
                one_worker_never_has_two_jobs,
                a_job_that_was_claimed_ahead_goes_back_unspent,
                a_job_that_was_claimed_ahead_and_lost_does_not_run,
                one_worker_whose_end_waits_for_a_lock_leaves_its_next_job_to_others,
                large_inputs_are_claimed_by_their_bytes,
                large_outputs_of_blockers_are_claimed_by_their_bytes,
            }
            hand_over {
                a_chain_goes_on_without_another_claim,
                a_step_of_somebody_else_is_left_to_them,
                a_turn_has_an_end,
                a_less_urgent_step_gets_in_line,
                a_hand_over_whose_answer_is_lost_goes_on,
                what_is_handed_over_while_stopping_goes_back,
                a_single_worker_claims_nothing_beside_what_it_is_handed,
                what_is_handed_over_after_an_outage_has_its_whole_lease,
            }
            pausing {
                a_paused_type_is_not_begun,
                a_pause_reaches_workers_by_notice,
                a_pause_is_found_by_polling,
                a_running_job_ends_during_a_pause,
                a_paused_step_is_not_handed_over,
                a_pause_ends_by_itself,
                a_worker_that_cannot_read_the_pauses_goes_on,
            }
            scheduling {
                a_delayed_chain_runs_when_it_is_due,
                an_absolute_time_is_kept,
                a_continuation_keeps_its_schedule,
                a_failure_may_choose_its_retry,
                a_recurring_job_runs_as_often_as_it_says,
                jobs_run_in_the_order_of_their_start,
                a_higher_priority_goes_first,
                a_triggered_job_runs_at_once,
            }
            processing {
                a_plain_completion_opens_no_transaction,
                the_completion_that_is_returned_counts,
                nothing_is_locked_while_a_processor_works,
                a_transactional_completion_is_committed_by_the_worker,
                a_completion_is_invisible_until_it_is_committed,
                staged_work_commits_in_two_transactions,
                stages_may_repeat_and_dropped_transactions_leave_nothing,
                user_writes_commit_with_the_completion,
                user_writes_roll_back_with_the_completion,
                a_savepoint_can_fail_alone,
                the_completion_of_another_attempt_is_refused,
            }
            failures {
                an_error_before_any_transaction_counts,
                an_error_in_prepare_rolls_back,
                an_error_between_the_stages_counts,
                an_error_in_the_transaction_rolls_back,
                an_error_after_finish_rolls_back,
                an_error_after_a_plain_finish_completes_nothing,
                a_transaction_poisoned_in_prepare_is_a_failure,
                a_transaction_poisoned_before_completion_is_a_failure,
                a_store_error_in_the_transaction_is_a_failure,
                a_continuation_is_rolled_back,
                dependants_stay_blocked_when_the_completion_rolls_back,
                errors_are_stored_with_their_sources,
            }
            retries {
                each_retry_sees_the_error_before,
                success_wipes_the_error,
                the_backoff_grows_to_its_maximum,
                the_backoff_is_measured_from_the_failure,
                exhausted_attempts_make_a_job_dead,
                a_fatal_error_is_not_retried,
                a_retried_job_starts_its_attempts_anew,
                snoozing_costs_nothing,
                the_shortest_snooze_is_a_pause,
                a_retry_is_found_by_other_workers,
                a_retry_outlives_the_worker_set_that_knows_of_it,
            }
            panics {
                a_panic_is_a_counted_failure,
                a_panic_before_the_first_await_is_a_failure,
                a_panic_in_the_transaction_rolls_back,
                a_timeout_drops_the_attempt_and_counts,
                a_timeout_frees_the_worker,
                timeouts_are_overridden_from_outside_in,
                a_panic_disturbs_nobody,
            }
            bad_rows {
                an_undecodable_input_is_dead,
                an_undecodable_input_is_dead_for_every_kind_of_processor,
                an_undecodable_continuation_is_dead,
                an_undecodable_blocker_output_is_dead,
                wrong_blockers_are_dead,
                a_dead_row_can_be_retried_by_another_build,
                a_damaged_row_is_dead_and_the_others_run,
            }
            processors {
                processors_take_every_form,
                one_closure_processes_a_whole_enum,
                provided_values_reach_processors,
                a_missing_value_is_a_failure_that_names_it,
                retry_settings_are_overridden_from_outside_in,
                lease_settings_are_overridden_from_outside_in,
            }
            leases {
                a_lease_is_renewed_while_its_attempt_runs,
                all_leases_are_renewed_in_one_call,
                short_attempts_are_not_renewed,
                an_expired_lease_that_nobody_took_completes,
                a_worker_never_reaps_its_own,
                a_stalled_attempt_is_taken_and_told,
                a_lost_attempt_cannot_complete,
                a_lost_attempt_cannot_complete_twice,
                a_lost_attempt_cannot_complete_in_its_transaction,
                a_lost_attempt_cannot_complete_twice_in_its_transaction,
                a_lost_attempt_cannot_prepare,
                a_lost_attempt_cannot_prepare_after_completion,
                a_lost_attempt_cannot_fail_its_successor,
                a_lost_attempt_cannot_snooze,
                an_old_attempt_of_the_same_worker_is_refused,
                a_long_transaction_keeps_its_job,
                a_lost_attempt_fails_early,
            }
            own_transactions {
                a_transaction_may_outlive_its_lease,
                prepare_may_outlive_its_lease,
                a_short_prepare_costs_no_renewal,
                the_store_decides_whether_an_expired_lease_is_lost,
                a_second_transaction_is_refused_at_once,
                a_dropped_finish_rolls_back,
                an_attempt_cannot_commit_a_dropped_request,
                an_attempt_cannot_complete_in_a_transaction_that_has_ended,
                a_completion_whose_transaction_has_ended_is_no_completion,
            }
            aborts {
                completion_from_outside_aborts,
                deletion_aborts,
                cancellation_aborts,
                a_taken_lease_aborts,
                a_failing_store_aborts_when_the_lease_is_over,
                a_silent_store_aborts_when_the_lease_is_over,
                a_job_lost_to_a_failing_store_comes_back,
                the_signal_can_be_polled,
                an_attempt_can_be_dropped_on_abort,
                a_signal_that_does_not_fire_is_silent,
            }
            reaping {
                the_job_of_a_dead_process_runs_again,
                a_crashed_job_runs_again_when_its_backoff_is_over,
                the_reaper_is_not_starved,
                an_expired_last_attempt_is_dead,
                all_expired_leases_are_taken_at_once,
                jobs_of_other_types_are_left_alone,
                a_failed_sweep_is_repeated_soon,
                a_sweep_whose_answer_is_lost_loses_nothing,
                a_killed_worker_leaves_its_jobs_to_the_reaper,
            }
            stopping {
                an_idle_worker_stops_at_once,
                nothing_is_claimed_after_stop,
                a_claim_on_its_way_is_given_back,
                a_claim_whose_answer_is_lost_is_given_back,
                an_attempt_may_end_within_the_grace_period,
                an_attempt_told_to_shut_down_has_not_failed,
                an_attempt_told_to_shut_down_may_complete,
                an_attempt_that_ignores_the_signal_is_dropped,
                a_processor_that_blocks_its_thread_does_not_hold_up_stop,
                drop_on_abort_holds_for_shutdown_too,
                stopping_twice_is_harmless,
                a_dropped_stop_still_stops,
                a_signal_is_listened_for_before_the_first_worker_starts,
                a_signal_that_has_come_already_starts_no_worker,
                a_worker_stops_while_its_store_is_down,
                a_worker_stops_while_its_store_is_silent,
                run_until_stops_at_its_signal,
                a_dropped_run_until_stops_its_workers,
            }
            resilience {
                every_verb_may_fail_before_its_effect,
                every_verb_may_fail_after_its_effect,
                every_verb_may_panic,
                one_worker_survives_bursts,
                five_workers_survive_bursts,
                two_processes_survive_bursts,
                a_claim_whose_answer_is_lost_costs_no_attempt,
                a_claim_that_is_answered_too_late_is_not_run,
                a_lost_claim_that_cannot_be_read_comes_back,
                the_recovery_backoff_resets,
                a_transient_renewal_error_aborts_nothing,
                a_refused_row_spoils_no_batch,
                a_row_that_keeps_failing_holds_up_nobody,
                a_misconfigured_store_is_waited_out,
            }
            lost_answers {
                a_lost_finish_tells_the_same,
                a_lost_finish_in_a_transaction_tells_the_same,
                a_lost_continuation_tells_the_same,
                a_lost_continuation_in_a_transaction_tells_the_same,
                a_lost_failure_tells_the_same,
                a_lost_death_tells_the_same,
                a_lost_snooze_tells_the_same,
                a_lost_release_tells_the_same,
                a_completion_that_seemed_refused_tells_the_same,
                a_lost_finish_wakes_another_process,
                a_start_whose_answer_is_lost_has_happened,
                a_keyed_start_whose_answer_is_lost_has_happened,
                a_start_that_nothing_tells_of_is_an_error,
                a_transaction_whose_commit_is_not_answered_has_happened,
                a_transaction_that_nothing_tells_of_is_an_error,
            }
            refusals {
                only_its_own_row_ends_a_completion,
                only_its_own_row_ends_a_failure,
                a_refused_claim_that_was_made_costs_no_attempt,
                a_hand_over_outlasts_a_refusal,
                a_refusing_store_is_not_asked_row_by_row,
            }
            outages {
                health_shows_the_outage,
                failing_upkeep_is_tried_again,
                health_recovers_when_nothing_is_left_to_renew,
                a_failed_commit_counts_once_and_backs_off,
                a_commit_whose_answer_is_lost_has_happened,
                a_settlement_whose_answer_is_lost_has_happened,
                a_failure_is_told_when_it_is_written,
                failing_hints_cost_no_work,
                lost_hints_cost_no_work,
                panicking_hints_cost_no_work,
                silent_hints_cost_no_work,
            }
            quiet {
                an_idle_worker_is_quiet,
                polling_keeps_its_interval,
                a_job_due_later_makes_no_noise,
                a_saturated_worker_asks_for_nothing,
                busy_workers_ask_in_batches,
                completions_are_committed_in_groups,
                a_locked_chain_holds_up_nobody_else,
            }
            wakeups {
                a_job_starts_promptly,
                a_transaction_announces_after_its_commit,
                five_processes_share_five_jobs,
                a_dependant_elsewhere_starts_promptly,
                the_next_step_elsewhere_starts_promptly,
                a_chain_goes_on_at_once_without_notices,
                the_poll_finds_what_was_not_announced,
                a_worker_listens_again_and_looks_again,
                one_job_wakes_one_worker,
                announcements_count_jobs_by_type,
            }
            middlewares {
                middlewares_wrap_in_the_order_given,
                a_middleware_may_snooze,
                inserted_values_reach_the_inside,
                a_middleware_sees_the_outcome,
                a_middleware_that_fails_before_is_a_failure,
                a_middleware_that_fails_after_is_a_failure,
                a_middleware_that_panics_before_is_a_failure,
                a_middleware_that_panics_after_is_a_failure,
                a_middleware_that_never_calls_next_is_a_failure,
            }
            transaction_hooks {
                hooks_wrap_every_transaction_of_the_attempt,
                a_plain_completion_calls_no_hooks,
                what_a_hook_writes_commits_with_the_transaction,
                a_hook_that_fails_at_the_opening_is_a_failure,
                a_hook_that_fails_at_the_closing_is_a_failure,
                a_hook_that_panics_at_the_opening_is_a_failure,
                a_hook_that_panics_at_the_closing_is_a_failure,
                a_hook_that_fails_in_prepare_is_a_failure,
                a_hook_that_panics_in_prepare_is_a_failure,
            }
            events {
                the_life_of_one_job,
                a_transactional_completion_tells_the_same,
                a_retry_is_told_of,
                a_continuation_is_told_of,
                blocking_and_unblocking_are_told_of,
                a_death_is_told_of,
                completion_from_outside_is_told_of,
                rolled_back_work_is_not_told_of,
                an_observer_that_panics_disturbs_nobody,
            }
            observed {
                a_timeout_is_told_of,
                a_snooze_and_a_stop_are_told_of,
                durations_are_told,
                an_observer_that_blocks_disturbs_nobody,
                a_continuation_ends_its_span_with_the_commit,
                a_failed_attempt_drops_the_span_of_its_continuation,
                processors_are_polled_inside_their_span,
                queues_are_sampled_if_somebody_asks,
                nobody_looks_unasked,
            }
            building {
                a_duplicate_processor_is_refused,
                a_worker_without_processors_is_refused,
                an_absurd_concurrency_is_refused,
                bad_names_are_refused,
                bad_leases_are_refused,
                bad_retry_policies_are_refused,
                intervals_of_zero_are_refused,
                settings_without_processor_are_refused,
                a_priority_of_a_worker_is_refused,
                extreme_durations_kill_nobody,
                every_start_has_an_id_of_its_own,
            }
            draining {
                drain_runs_what_is_due,
                drain_returns_failures,
                drain_takes_back_expired_leases,
                drain_reports_errors,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __worker_cases {
    ($fixture:expr; $($module:ident { $($case:ident,)+ })+) => {$(
        mod $module {
            #[allow(unused_imports, reason = "the fixture may be named by its full path")]
            use super::*;

            $(
                #[test]
                fn $case() {
                    $crate::run(|| $fixture, $crate::behaviour::worker::$module::$case);
                }
            )+
        }
    )+};
}
