#include "gateway/desk/desk.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

namespace arlo::gateway {
namespace {

// A client's cancellation at its deadline reaches us before our deadline, because its timeout travelled for a while,
// and gRPC rounds it up, by as much as 1 %.
bool gave_up_at_deadline(const Call& call, TimeNs now) {
  constexpr TimeNs kTravel = 5 * kMs;
  return now >= call.deadline_ns - kTravel - (call.deadline_ns - call.received_ns) / 100;
}

dispatch::Verdict verdict_of(Reply reply) {
  return reply == Reply::kGood ? dispatch::Verdict::kAnswered : dispatch::Verdict::kFailed;
}

// The batch limit for a row after its batch failed: half as many rows. A row whose worker has died twice runs alone.
std::int32_t fewer(const Row& row) {
  if (row.batch_rows <= 1 || row.attempts > 1) return 1;
  return static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(row.batch_rows) - 1));
}

Fleet::Others instances_of(const std::vector<std::shared_ptr<Failure>>& failures) {
  Fleet::Others instances;
  for (const auto& failure : failures) instances.push_back(failure->instance);
  return instances;
}

// The instances that failed this row, now that another answered it well, and all others that failed with it.
Fleet::Others guilty(const Row& row, const std::shared_ptr<Instance>& answered_by) {
  Fleet::Others instances;
  for (const auto& failure : row.failures) {
    failure->acquitted = failure->acquitted || failure->instance == answered_by;
    if (failure->open == 0 && !failure->acquitted) instances.push_back(failure->instance);
  }
  return instances;
}

// When the row must end with its best answer so far.
TimeNs deadline_of(const Row& row) {
  const bool answered = row.journey != nullptr && row.journey->answered();
  return row.call->deadline_ns - (answered ? row.call->model->cascade->margin : 0);
}

}  // namespace

Desk::Desk(const v1::GatewayConfig& config, dispatch::Scheduler& scheduler, Fleet& fleet, const BooksByVariant& books,
           UpstreamListener& listener, AuditListener& audits)
    : config_(config),
      scheduler_(scheduler),
      fleet_(fleet),
      books_(books),
      listener_(listener),
      audits_(scheduler, fleet, audits),
      admission_(config, scheduler, fleet),
      cascades_(*this, scheduler, fleet, flow_books_, audits_),
      visits_(*this, admission_, config, scheduler, flow_books_, audits_) {}

UpstreamCall::Part*& Desk::running(dispatch::RequestHandle handle) {
  if (running_.size() <= handle) running_.resize(handle + 1);
  return running_[handle];
}

// Submits all rows or none: if one is refused, nothing of the request runs.
void Desk::submit(Call& call, TimeNs now, Effects& effects) {
  const auto& lengths = call.request.lengths();
  call.rows = std::vector<Row>(lengths.size());
  call.open_rows = static_cast<std::uint32_t>(lengths.size());
  call.holds.store(call.open_rows, std::memory_order_relaxed);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    auto& row = call.rows[i];
    row.call = &call;
    row.index = static_cast<std::uint32_t>(i);
    row.length = lengths[i];
    const bool cascade = call.model->cascade != nullptr;
    const bool several = cascade || call.model->flow != nullptr;
    if (call.kind != Call::Kind::kAudit)
      books(call).arrived(row.length, several ? -1 : scheduler_.ideal_level(row.length, call.model->variant));
    if (cascade) cascades_.begin(row);
  }
  if (call.cancelled) {
    fail(call, {Code::kCancelled, "cancelled by the client"}, Call::kNoRow, now, effects);
  } else if (auto fault = admission_.weigh(call, now)) {
    fail(call, std::move(*fault), Call::kNoRow, now, effects);
  }
  const TimeNs deadline = call.waiting_deadline();
  if (call.model->flow != nullptr) {
    if (call.fault.code == Code::kOk) {
      scheduler_.hold();
      visits_.begin(call, now, effects);
      visits_.pump(now, effects);
      scheduler_.release(now, effects.actions);
    }
    settle(effects, now);
    return;
  }
  if (call.rows.size() > 1) scheduler_.hold();  // they may go as batches
  for (auto& row : call.rows) {
    if (call.fault.code != Code::kOk) break;
    const auto admitted = arrive(row, deadline, now, effects);
    if (admitted.handle == dispatch::kNone) {
      fail(call, admission_.refusal(row, admitted, now), row.index, now, effects);
    }
    settle(effects, now);
  }
  scheduler_.release(now, effects.actions);
  settle(effects, now);
}

dispatch::Admitted Desk::arrive(Row& row, TimeNs deadline, TimeNs now, Effects& effects) {
  const Call& call = *row.call;
  const VisitCall* const visit = visit_of(*row.call);
  const auto admitted = scheduler_.arrive(
      row.tag(),
      {.length = row.length,
       .due = visit != nullptr ? visit->due : call.received_ns + call.model->slo_ns,
       .deadline = deadline,
       .client = call.in_turn ? 0 : call.client,
       .bulk = call.bulk(),
       .variant = row.model().variant,
       .follows = visit != nullptr ? visit->follows : row.journey != nullptr && row.journey->answered(),
       .utility = visit != nullptr ? visit->utility : 1,
       .kind = visit != nullptr ? visit->kind_of(row) : 0},
      now, effects.actions);
  if (admitted.handle == dispatch::kNone) return admitted;
  row.handle = admitted.handle;
  row.state = Row::State::kWaiting;
  waiting_.add(row);
  return admitted;
}

void Desk::cancel(Call& call, TimeNs now, Effects& effects) {
  call.cancelled = true;
  if (call.open_rows == 0) return;  // not submitted yet, or answered
  fail(call,
       gave_up_at_deadline(call, now)
           ? Fault{Code::kDeadlineExceeded, "the deadline passed while the request was served"}
           : Fault{Code::kCancelled, "cancelled by the client"},
       Call::kNoRow, now, effects);
  settle(effects, now);
}

// ---- the scheduler's decisions ----

// Handling an action may add more, so the list grows while it is walked; the pipelines may then add further ones.
void Desk::settle(Effects& effects, TimeNs now) {
  do {
    for (std::size_t i = 0; i < effects.actions.size();) {
      const dispatch::Action action = effects.actions[i];
      if (action.kind == dispatch::ActionKind::kStart) {
        i = begin(i, now, effects);
        continue;
      }
      ++i;
      if (action.kind == dispatch::ActionKind::kExpired) {
        expired(*reinterpret_cast<Row*>(action.tag), action.evicted, now, effects);
      } else {
        lost(action, now, effects);  // its tag may name a row that has ended
      }
    }
    effects.actions.clear();
    visits_.pump(now, effects);
  } while (!effects.actions.empty());
}

std::size_t Desk::begin(std::size_t at, TimeNs now, Effects& effects) {
  const dispatch::Action first = effects.actions[at];
  std::size_t end = at + 1;
  const auto same_batch = [&](const dispatch::Action& action) {
    return action.kind == dispatch::ActionKind::kStart && action.batch == first.batch &&
           action.instance == first.instance;
  };
  while (first.batch != dispatch::kNone && end < effects.actions.size() && same_batch(effects.actions[end])) ++end;

  const auto& instance = fleet_.at(first.instance);
  const RuntimeInfo& runtime = instance->member(first.runtime);
  batch_.clear();
  for (; at < end; ++at) {
    const dispatch::Action action = effects.actions[at];
    Row& row = *reinterpret_cast<Row*>(action.tag);
    if (row.state == Row::State::kEnded) {  // its call failed between the decision and its execution
      scheduler_.finish(action.handle, dispatch::Verdict::kFailed, now, effects.actions);
      continue;
    }
    row.handle = action.handle;
    row.level = action.level;
    row.max_length = scheduler_.level_max_length(action.level);
    row.demoted = action.demoted;
    batch_.push_back(&row);
    VisitCall* const visit = visit_of(*row.call);
    if (visit != nullptr && !visit->starts_as(runtime.variant, *visits_.state(visit->state->model->variant))) {
      row.level = scheduler_.ideal_level(row.length, row.model().variant);
    }
  }
  // Rows whose clients set parameters for the model go in separate batches.
  for (auto from = batch_.begin(); from != batch_.end();) {
    const auto rest = std::stable_partition(from, batch_.end(),
                                            [&](const Row* row) { return worded(*row).goes_with(worded(**from)); });
    send({from, rest}, instance, runtime, now, effects);
    from = rest;
  }
  return end;
}

void Desk::send(std::span<Row* const> rows, const std::shared_ptr<Instance>& instance, const RuntimeInfo& runtime,
                TimeNs now, Effects& effects) {
  std::int32_t longest = 0;
  for (const Row* row : rows) longest = std::max(longest, row->length);
  const std::int32_t tokens = WorkerRequest::tokens(longest, runtime);
  auto* upstream = new UpstreamCall(listener_, rows, instance, runtime, tokens);
  for (auto& part : upstream->parts()) {
    Row& row = *part.row();
    waiting_.remove(row);
    row.state = Row::State::kRunning;
    row.padded = tokens;
    row.batch_rows = static_cast<std::int32_t>(rows.size());
    row.started_ns = now;
    row.unfit_since_ns = 0;
    ++row.attempts;
    books(row).started(row);
    running(row.handle) = &part;
    next_deadline_ = std::min(next_deadline_, deadline_of(row));
    row.call->holds.fetch_add(1, std::memory_order_relaxed);
  }
  books(*rows.front()).sent();
  fleet_.sent(*instance, now);
  ++at_workers_;
  effects.starts.push_back(upstream);
}

void Desk::expired(Row& row, bool evicted, TimeNs now, Effects& effects) {
  if (row.state == Row::State::kEnded) return;
  if (VisitCall* const visit = visit_of(*row.call); visit != nullptr) visit->evicted = evicted;
  row.handle = dispatch::kNone;
  const auto waited = in_ms(now - row.call->received_ns);
  const auto variant = row.model().variant;
  if (cascades_.settles_for(
          row, scheduler_.fits_any(row.length, variant) ? flow::Reason::kDeadline : flow::Reason::kStageAbsent, now)) {
    end(row, now, effects);
    return;
  }
  Fault fault;
  if (!scheduler_.fits_any(row.length, variant)) {
    fault = fleet_.no_instance(row.length, variant);
  } else if (now >= row.call->waiting_deadline()) {
    fault = {Code::kDeadlineExceeded, "the request waited until its deadline (" + waited + "): " + kMoreTime};
  } else if (row.call->bulk() && std::cmp_greater_equal(scheduler_.queued(), config_.dispatch().max_queued())) {
    fault = {Code::kResourceExhausted, "the queue is full, and interactive requests go first: try again later", true};
  } else {
    fault = {Code::kDeadlineExceeded,
             "the request waited " + waited + ", and its deadline cannot be met any more: " + kMoreTime, true};
  }
  fail(*row.call, std::move(fault), row.index, now, effects);
}

void Desk::lost(const dispatch::Action& action, TimeNs now, Effects& effects) {
  UpstreamCall::Part* const part = std::exchange(running(action.handle), nullptr);
  if (part == nullptr) return;  // its answer brought the instance down: answered() handles it
  UpstreamCall& upstream = part->upstream();
  if (!upstream.lost) {
    upstream.lost = true;
    left_behind_.insert(&upstream);
    fleet_.leave_behind(*upstream.instance(), now);
  }
  if (part->dropped) {
    scheduler_.abandon(action.handle);
    return;
  }
  Row* const row = part->take();
  if (row == nullptr) return;  // its answer has just come: answered() follows
  part->dropped = true;
  if (try_again(*row, dispatch::kNone, fewer(*row), now, effects)) return;
  scheduler_.abandon(action.handle);
  const auto& instance = *upstream.instance();
  if (!cascades_.settles_for(*row, flow::Reason::kStageFailed, now)) {
    fail(*row->call,
         {Code::kUnavailable, "worker '" + instance.worker_label + "', runtime '" + instance.runtime +
                                  "' failed while the request ran: " + instance.last_error},
         row->index, now, effects);
  }
  end(*row, now, effects);
}

// Schedules a row once more if its worker failed it and that is still useful, in a batch of at most `most` rows.
bool Desk::try_again(Row& row, dispatch::InstanceId avoid, std::int32_t most, TimeNs now, Effects& effects) {
  const auto& call = *row.call;
  // An audit is not worth a retry, and in a batch of its body it would get a different token count.
  if (call.kind == Call::Kind::kAudit) return false;
  if (call.fault.code != Code::kOk || row.attempts >= config_.max_attempts() || now >= call.waiting_deadline()) {
    return false;
  }
  books(row).retried();
  row.state = Row::State::kWaiting;
  waiting_.add(row);
  static_cast<void>(scheduler_.retry(row.handle, avoid, now, effects.actions, most));
  return true;
}

// ---- answers ----

void Desk::answered(UpstreamCall& upstream, Reply reply, const Fault& fault, TimeNs now, Effects& effects) {
  Answer answer{.instance = upstream.instance(),
                .lost = upstream.lost,
                .reply = reply,
                .fault = fault,
                .doubtful = false,
                .failure = nullptr};
  Instance& instance = *answer.instance;
  --at_workers_;
  if (upstream.lost) left_behind_.erase(&upstream);
  for (const auto& part : upstream.parts()) {
    if (!upstream.lost && !part.left_out) running(part.handle()) = nullptr;
  }
  fleet_.returned(instance, upstream.lost, now);
  if (reply != Reply::kGood) {
    ++instance.failed;
  } else if (!upstream.lost) {
    fleet_.answered_well(instance);
  }
  if (reply == Reply::kError) {
    answer.doubtful = fleet_.answered_badly(instance, fault.message);
    answer.failure = std::make_shared<Failure>(Failure{answer.instance, upstream.rows() == 1});
  }
  // The scheduler returns these rows with the others that ran there (kLost), and lost() leaves them to us.
  if ((reply == Reply::kDead || reply == Reply::kMissing) && !upstream.lost) {
    fleet_.eject(answer.instance, fault.message, fleet_.short_pause(), now, effects);
  }
  const bool journeys = std::any_of(upstream.parts().begin(), upstream.parts().end(), [](const auto& part) {
    return part.answered != nullptr && (part.answered->journey != nullptr || visit_of(*part.answered->call) != nullptr);
  });
  if (journeys) scheduler_.hold();  // rows that go on to another stage may be batched
  for (auto& part : upstream.parts()) {
    if (part.answered != nullptr) {
      conclude(*part.answered, answer, now, effects);
    } else if (!answer.lost && !part.left_out) {  // its client has been answered already
      scheduler_.finish(part.handle(), verdict_of(reply), now, effects.actions);
    }
  }
  if (journeys) {
    visits_.pump(now, effects);
    scheduler_.release(now, effects.actions);
  }
  settle(effects, now);
  fleet_.check_drained(answer.instance, effects);
}

// Applies a worker's answer to one of its rows: the row ends, or runs elsewhere.
void Desk::conclude(Row& row, const Answer& answer, TimeNs now, Effects& effects) {
  const Reply reply = answer.reply;
  // If a batch fails, one row may be at fault: find it by halving the batch, on the same worker if need be.
  const bool by_halves = row.batch_rows > 1 && (reply == Reply::kError || reply == Reply::kRefused);
  bool elsewhere =
      by_halves || answer.lost || reply == Reply::kDead || reply == Reply::kMissing || reply == Reply::kBusy;
  if (answer.failure != nullptr) {
    // If a row fails alone on two otherwise sound instances, the row is at fault. A failure of an instance that fails
    // others as well proves nothing.
    const bool before =
        std::any_of(row.failures.begin(), row.failures.end(), [](const auto& failure) { return failure->alone; });
    const bool proven = before && !answer.doubtful;
    row.failures.push_back(answer.failure);
    ++answer.failure->open;
    elsewhere = elsewhere || (!proven && fleet_.takes(row.length, row.model().variant, instances_of(row.failures)));
  }
  if (by_halves) --row.attempts;
  const std::int32_t most = reply == Reply::kBusy ? 0 : fewer(row);
  if (reply != Reply::kGood && elsewhere && try_again(row, answer.instance->slot, most, now, effects)) return;

  scheduler_.finish(row.handle, verdict_of(reply), now, effects.actions);
  const bool further = reply == Reply::kGood && row.journey != nullptr && cascades_.goes_on(row, now, effects);
  if (reply != Reply::kGood) {
    for (const auto& failure : row.failures) failure->acquitted = true;
    if (!cascades_.settles_for(row, flow::Reason::kStageFailed, now))
      fail(*row.call, answer.fault, row.index, now, effects);
  }
  if (further) {
    for (const auto& failure : row.failures) --failure->open;
  } else {
    end(row, now, effects);
  }
  if (reply != Reply::kGood || row.failures.empty()) return;
  settle(effects, now);  // an ejection starts from a clean state
  fleet_.blame(guilty(row, answer.instance), now, effects);
  if (further) row.failures.clear();
}

void Desk::fail(Call& call, Fault fault, std::uint32_t row, TimeNs now, Effects& effects) {
  if (call.fault.code != Code::kOk) return;
  call.fault = std::move(fault);
  call.fault_row = row;
  for (auto& each : call.rows) {
    if (each.state != Row::State::kEnded) withdraw(each, now, effects);
  }
}

void Desk::withdraw(Row& row, TimeNs now, Effects& effects) {
  if (leaves(row, now, effects)) end(row, now, effects);
}

bool Desk::leaves(Row& row, TimeNs now, Effects& effects) {
  if (row.state == Row::State::kRunning) {
    UpstreamCall::Part* const part = running(row.handle);
    if (part == nullptr) return false;  // its answer is in hand, and the holder ends the row
    if (!take_back(*part, now, effects)) {
      if (part->take() == nullptr) return false;  // its answer has just come, and answered() follows
      part->dropped = true;
    }
  } else if (row.state == Row::State::kWaiting && row.handle != dispatch::kNone) {
    // If it no longer waits, its start or end is among the unsettled actions.
    static_cast<void>(scheduler_.cancel(row.handle, row.tag(), now, effects.actions));
  }
  return true;
}

// A start decided under the lock that is still held has not been sent, and need not be.
bool Desk::take_back(UpstreamCall::Part& part, TimeNs now, Effects& effects) {
  UpstreamCall* const upstream = &part.upstream();
  const auto at = std::find(effects.starts.begin(), effects.starts.end(), upstream);
  if (at == effects.starts.end()) return false;
  const dispatch::RequestHandle handle = part.handle();
  const Row& row = *part.row();
  Call* const call = row.call;
  books(row).unstarted(row);
  running(handle) = nullptr;
  if (!upstream->leave_out(part)) {
    effects.starts.erase(at);
    books(row).unsent();
    fleet_.unsent(*upstream->instance(), now);
    --at_workers_;
    delete upstream;
  }
  scheduler_.finish(handle, dispatch::Verdict::kFailed, now, effects.actions);
  effects.releases.push_back(call);
  return true;
}

void Desk::end(Row& row, TimeNs now, Effects& effects) {
  if (row.state == Row::State::kWaiting) waiting_.remove(row);
  row.state = Row::State::kEnded;
  row.ended_ns = now;
  row.handle = dispatch::kNone;
  for (const auto& failure : row.failures) --failure->open;
  if (row.flow != nullptr) visits_.leave(row, now);
  Call& call = *row.call;
  if (--call.open_rows == 0 && call.kind != Call::Kind::kAudit) {
    admission_.learn_delay(call, now);
    books(call).ended(call, now);
  }
  if (VisitCall* const visit = visit_of(call); visit != nullptr) visits_.ended(*visit);
  effects.releases.push_back(&call);
}

bool Desk::pull_back(Row& row, TimeNs now, Effects& effects) {
  if (row.state != Row::State::kWaiting) return false;
  if (!scheduler_.cancel(row.handle, row.tag(), now, effects.actions)) return false;
  waiting_.remove(row);
  row.state = Row::State::kNew;
  row.handle = dispatch::kNone;
  row.unfit_since_ns = 0;
  return true;
}

// ---- time ----

void Desk::tick(TimeNs now, Effects& effects) {
  // This runs even without a new deadline: `late` otherwise reexamines waiting rows only at events.
  if (scheduler_.queued() > 0) {
    scheduler_.expire(now, effects.actions);
    settle(effects, now);
  }
  check_fit(now, effects);
  check_deadlines(now, effects);
  settle(effects, now);
  cascades_.look(now);
  visits_.look(now);
}

// Rows that fit no instance in service wait for unavailable_grace_ms from their arrival, or from the departure of the
// last instance that was long enough.
void Desk::check_fit(TimeNs now, Effects& effects) {
  if (scheduler_.parked() == 0 && !some_unfit_) return;
  some_unfit_ = false;
  const TimeNs grace = TimeNs{config_.unavailable_grace_ms()} * kMs;
  std::vector<Row*> over;
  std::vector<Row*> astray;  // of cascades, whose stage has gone
  std::array<std::int32_t, dispatch::kVariants> longest{};
  for (std::size_t variant = 0; variant < books_.size(); ++variant) {
    longest.at(variant) = fleet_.longest(static_cast<dispatch::VariantId>(variant));
  }
  for (Row* row = waiting_.newest(); row != nullptr; row = row->older) {
    if (row->length <= longest.at(row->model().variant)) {
      row->unfit_since_ns = 0;
      continue;
    }
    some_unfit_ = true;
    if (row->journey != nullptr) {
      astray.push_back(row);
      continue;
    }
    if (row->unfit_since_ns == 0) row->unfit_since_ns = now;
    VisitCall* const visit = visit_of(*row->call);
    const bool elsewhere = visit != nullptr && visit->others_fit(scheduler_);
    if (visit != nullptr) visit->no_instance = elsewhere;
    if (elsewhere || now - row->unfit_since_ns >= grace) over.push_back(row);
  }
  for (Row* row : over) {
    fail(*row->call, fleet_.no_instance(row->length, row->model().variant), row->index, now, effects);
  }
  for (Row* row : astray) cascades_.find_way(*row, grace, now, effects);
}

void Desk::check_deadlines(TimeNs now, Effects& effects) {
  if (now < next_deadline_) return;
  next_deadline_ = dispatch::kNever;
  std::vector<Row*> late;  // of cascades, with an answer and no time for another
  for (const auto* part : running_) {
    Row* const row = part == nullptr ? nullptr : part->row();
    if (row == nullptr) continue;
    Call& call = *row->call;
    if (now >= deadline_of(*row) && row->journey != nullptr && row->journey->answered()) {
      late.push_back(row);
    } else if (now >= call.deadline_ns) {
      fail(call, {Code::kDeadlineExceeded, std::string("the deadline passed while the request ran: ") + kMoreTime},
           Call::kNoRow, now, effects);
    } else {
      next_deadline_ = std::min(next_deadline_, deadline_of(*row));
    }
  }
  for (Row* row : late) end_late(*row, now, effects);
}

void Desk::end_late(Row& row, TimeNs now, Effects& effects) {
  const auto* part = row.state == Row::State::kRunning ? running(row.handle) : nullptr;
  if (part == nullptr || part->row() == nullptr) return;  // it has ended, or its answer has just come
  if (Cascades::may_settle(row, flow::Reason::kDeadline)) {
    if (!leaves(row, now, effects)) return;  // its answer has come meanwhile
    cascades_.settles_for(row, flow::Reason::kDeadline, now);
    end(row, now, effects);
  } else if (now < row.call->deadline_ns) {
    next_deadline_ = std::min(next_deadline_, row.call->deadline_ns);
  } else {
    fail(*row.call, {Code::kDeadlineExceeded, "the deadline passed while the request ran"}, Call::kNoRow, now, effects);
  }
}

// ---- requests by the gateway ----

void Desk::audit_ended(Audit& audit) {
  const auto result = audits_.ended(audit);
  const auto& about = audit.about();
  if (result.good) flow_books_.audited(*about.of, about.stage, about.variant, result.disagreed);
}

void Desk::stop_audits(TimeNs now, Effects& effects) {
  for (Audit* audit : audits_.open()) cancel(*audit, now, effects);
}

void Desk::fill_flow(v1::Stats* out, const ModelSpec* model) const {
  if (model == nullptr) return;
  flow_books_.fill(out, *model, visits_.state(model->variant), scheduler_);
  audits_.fill(out, model);
}

void Desk::cancel_all() {
  for (const auto* part : running_) {
    if (part != nullptr) part->upstream().cancel();
  }
  for (auto* upstream : left_behind_) upstream->cancel();
}

}  // namespace arlo::gateway
