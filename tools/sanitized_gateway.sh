#!/usr/bin/env bash
# Runs socket tests of the gateway against a program built with sanitizers.
# usage: tools/sanitized_gateway.sh PYTHON PROGRAM [PYTEST_ARGUMENT...]   without arguments: the tests named here
#
# A finding ends the program with exit code 66, at once or when it stops, and the tests accept 0 only; they show its
# report. The workers are fakes (tests/fakes/small_workers.py). The tests named here are those in which threads meet:
# streams, cancellations, deadlines, disconnecting clients, changing deployments, shutdown. Tests that measure time or
# memory, or that need a real Triton, prove nothing here.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
ARLO_GATEWAY=$(realpath "$2")
shift 2
export ARLO_GATEWAY ARLO_SANITIZED=1
export ASAN_OPTIONS=detect_stack_use_after_return=1:quarantine_size_mb=16:exitcode=66
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:exitcode=66
# Only calls from our code count: libraries built without the sanitizer show half of theirs.
export TSAN_OPTIONS=ignore_noninstrumented_modules=1:exitcode=66:history_size=4

tests() {
  local file=$1 name
  shift
  for name; do echo "tests/integration/gateway/test_gateway_$file.py::test_$name"; done
}
if [ $# -eq 0 ]; then
  # shellcheck disable=SC2046
  set -- $(
    tests turmoil turmoil_on_all_ports the_end_amid_turmoil
    tests room a_cancelled_request_is_let_go_and_keeps_its_room a_deadline_is_kept_here_and_not_passed_on \
      a_cancelled_batch_and_a_cancelled_stream_end_at_once \
      a_batch_that_is_refused_is_refused_at_once_and_starts_nothing \
      drain_waits_for_rows_whose_clients_have_gone a_silent_worker_is_ejected_and_its_rows_run_elsewhere \
      cancels_close_to_the_answer_end_every_request_once
    tests deadlines one_request_of_a_stream_may_expire a_batch_that_does_not_fit_the_queue_leaves_nothing_behind
    tests strangers what_is_sent_to_the_http_port_by_mistake counts_of_a_message_are_bounded_while_it_is_read \
      compressed_messages_swell_to_the_largest_message_and_no_further a_stream_that_is_not_read_is_not_read_from \
      streams_of_a_connection_are_limited bad_headers_do_not_fill_the_log \
      descriptors_are_as_many_as_the_machine_allows the_admin_port_as_a_socket_of_this_user
    tests process metrics a_signal_lets_requests_finish_and_refuses_new_ones open_streams_are_answered_and_end \
      what_comes_on_a_stream_while_the_gateway_stops_is_refused it_says_that_it_stops_before_it_does \
      a_second_signal_ends_at_once
    tests admin instances_come_and_go_under_load_and_no_request_fails a_changed_instance_is_another_one \
      drain_under_load a_drain_whose_caller_has_gone watching
    tests failures a_request_that_kills_workers_kills_no_more_than_max_attempts \
      others_at_a_worker_that_dies_of_a_request_are_answered nonsense_from_a_worker_is_an_error_of_that_request
    tests faults two_sick_of_four_are_both_put_aside
    tests batches rows_of_many_clients_go_as_one_request a_client_that_goes_leaves_its_batch_unharmed \
      of_a_batch_that_fails_the_bad_row_is_found a_worker_that_dies_of_a_row_takes_no_other_along \
      whatever_happens_every_request_is_answered_once_and_rightly a_bundle_runs_each_row_where_it_costs_least \
      bulk_fills_what_others_leave
    tests models models_come_while_others_are_served_and_the_end_answers_all a_flood_of_one_model_is_not_felt_by_another \
      models_that_come_while_the_gateway_stops
    tests cascades rows_end_where_the_rules_say whatever_happens_rows_are_answered_once_and_rightly \
      deadlines_end_rows_with_what_they_have what_cannot_be_a_cascade_is_refused
    tests cascade_words more_words_are_left_out_where_there_is_no_time
    tests cascade_texts words_are_left_out_of_other_tokens
    tests cascade_own whatever_happens_a_row_is_answered_once
    for name in rows_take_their_edges other_plans_under_load clients_that_leave_and_deadlines a_part_that_is_given_up; do
      echo "tests/integration/gateway/test_pipeline.py::test_$name"
    done
    tests answers several_threads large_answers
    tests malformed malformed_requests_on_one_stream malformed_deployments
    tests security tls
  )
fi
exec "$python" -m pytest -q -p no:cacheprovider -n 3 --dist worksteal "$@"
