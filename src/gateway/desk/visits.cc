#include "gateway/desk/visits.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "gateway/desk/desk.h"
#include "gateway/desk/judge.h"

namespace arlo::gateway {

namespace pipeline = flow::pipeline;

namespace {

Fault fault_of(const FlowRoot& root, const FlowRow& row, pipeline::DropReason reason) {
  struct Words {
    Code code;
    const char* message;
  };
  constexpr Words kWords[pipeline::kDropReasons] = {
      {Code::kDeadlineExceeded, "a stage of the pipeline took longer than its budget, and no quicker way is left"},
      {Code::kDeadlineExceeded, "no way through the pipeline that is left can be done by the deadline"},
      {Code::kResourceExhausted,
       "no variant of the pipeline can take the row: its queues are full, or none that is there is as accurate as "
       "min_accuracy asks: try again later"},
      {Code::kResourceExhausted, "the row becomes more rows than the pipeline's max_children ("},
      {Code::kUnavailable, "a stage of the pipeline failed the row"},
      {Code::kDeadlineExceeded, "evicted: it cannot be done by its deadline beside rows that are worth more"}};
  const auto& flow = *root.state->model->flow;
  using pipeline::DropReason;
  if (reason == DropReason::kFailed && root.fault.code != Code::kOk) return root.fault;
  const auto& [code, message] = kWords[static_cast<std::size_t>(reason)];
  Fault fault{code, message};
  fault.overload = reason != DropReason::kFanout && reason != DropReason::kFailed;
  if (reason == DropReason::kFanout) fault.message += std::to_string(flow.core.max_open) + "): send it in parts";
  if (!fault.overload || reason == DropReason::kBudget || !row.pressed) return fault;
  fault.code = Code::kResourceExhausted;
  fault.message = (row.tenant < flow.tenants.size() ? "tenant '" + flow.tenants[row.tenant].name + "' takes"
                                                    : "rows that name no tenant take") +
                  " more than their share of workers, which are too few for all, so this one was not to wait: try "
                  "again later";
  return fault;
}

Fault too_large(const FlowSpec& flow) {
  return {Code::kResourceExhausted, "what the row becomes takes more than the pipeline's max_bytes (" +
                                        std::to_string(flow.max_bytes) + "): send it in parts"};
}

// Returns the models on the ways of joined rows: the common prefix, then the rest of each in brackets.
std::string route_of(const std::vector<const FlowSource*>& parts) {
  std::vector<std::string_view> all;
  for (const auto* part : parts) {
    if (std::find(all.begin(), all.end(), part->route) == all.end()) all.emplace_back(part->route);
  }
  if (all.size() == 1) return std::string(all.front());
  std::size_t same = 0;  // characters, up to a model
  std::ptrdiff_t open = 0;
  for (std::size_t i = 0; i < all.front().size(); ++i) {
    const char c = all.front()[i];
    if (std::any_of(all.begin(), all.end(), [&](auto route) { return i >= route.size() || route[i] != c; })) break;
    open += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c == '>' && open == 0) same = i + 1;
  }
  std::string route(all.front().substr(0, same));
  for (const auto& each : all) route.append(each == all.front() ? "(" : "+").append(each.substr(same));
  return route + ")";
}

// Sets the variants allowed by this `pin`, in the form of flow::pipeline::RootArrival.
MaybeFault pinned(const FlowSpec& flow, std::string_view pin, std::uint64_t* may_take) {
  const auto wrong = [](std::string what) {
    return Fault{Code::kInvalidArgument, "parameter 'pin' " + std::move(what)};
  };
  while (!pin.empty()) {
    const auto name = pin.substr(0, pin.find_first_of(">(+)"));
    pin.remove_prefix(std::min(name.size() + 1, pin.size()));
    if (name.empty()) continue;
    bool found = false;
    std::string names;
    std::size_t first = 0;
    for (const auto& stage : flow.stages) {
      const std::size_t end = first + stage.variants.size();
      for (std::size_t v = first; v < end; ++v) {
        const auto& variant = stage.variants[v - first].model->name;
        names += " " + variant;
        if (variant != name) continue;
        if (stage.counts) return wrong("names " + variant + ", and its stage chooses token counts for batches of rows");
        if (end > 64) return wrong("names " + variant + ", and only the first 64 variants can be pinned");
        found = true;
        const std::uint64_t one = std::uint64_t{1} << v;
        if ((*may_take & one) == 0) return wrong("names two variants of stage " + stage.name);
        for (std::size_t other = first; other < end; ++other) *may_take &= ~(std::uint64_t{1} << other);
        *may_take |= one;
      }
      first = end;
    }
    if (!found) return wrong("names " + quoted(name) + ", which is none of the variants:" + names);
  }
  return {};
}

// Reads the call's wishes for its rows' journeys, and its tenant.
MaybeFault wishes_of(const Call& call, const FlowState& state, pipeline::RootArrival& wished, std::size_t& tenant) {
  const auto& flow = *state.model->flow;
  if (call.kind == Call::Kind::kAudit) {
    tenant = state.tenant_of("");
    wished.may_take = state.best.may_take;
    wished.min_accuracy = state.best.accuracy;
    return {};
  }
  const auto& wishes = call.request.flow_wishes();
  if (auto bad = pinned(flow, wishes.pin, &wished.may_take)) return bad;
  tenant = state.tenant_of(wishes.tenant);
  if (tenant > flow.tenants.size()) {
    std::string names;
    for (const auto& one : flow.tenants) names += " " + one.name;
    return Fault{Code::kInvalidArgument,
                 "parameter 'tenant' names " + quoted(wishes.tenant) + ", which is none of the tenants:" + names};
  }
  wished.min_accuracy = wishes.min_accuracy;
  wished.utility = wishes.utility / state.tenants.price(tenant);  // prices make tenants' rows comparable
  return {};
}

// No further answer comes: the previous one is used.
void falls_back(FlowRow& row, const FlowSource& from) {
  const auto& before = *from.before;
  const auto told = std::find_if(row.answers.begin(), row.answers.end(), [&](const auto& each) {
    return each.stage == before.stage && each.way == before.way;
  });
  auto& kept = told == row.answers.end() ? row.answers.emplace_back(before) : *told;
  kept.last = true;
  row.executed_ns = std::max(row.executed_ns, from.executed_ns);
}

// A part of the row has been given up.
void dropped(const FlowRoot& root, const pipeline::Step& step) {
  auto& flow = *root.row->flow;
  if (step.reason != pipeline::DropReason::kFanout && step.reason != pipeline::DropReason::kFailed &&
      root.row->call->kind != Call::Kind::kAudit) {
    root.state->tenants.given_up(flow.tenant);
  }
  ++flow.dropped;
  if (flow.reason < 0) flow.reason = static_cast<std::int32_t>(step.reason);
  if (step.falls_back) falls_back(flow, *reinterpret_cast<const FlowSource*>(step.parent));
}

// Joins the products of a fork's row into one row, in the order in which the fork made them.
MaybeFault join_parts(FlowRoot& root, const pipeline::Step& step, FlowSource& to) {
  const auto& core = root.state->core;
  const FlowSpec& flow = *root.state->model->flow;
  std::vector<const FlowSource*> parts;
  for (const auto& part : core.parts(step.visit)) parts.push_back(reinterpret_cast<const FlowSource*>(part.tag));
  std::sort(parts.begin(), parts.end(), [](const auto* a, const auto* b) { return a->way < b->way; });
  const auto& head = *flow.stages[static_cast<std::size_t>(step.stage)].variants.front().model;
  root.bytes += sizeof(FlowSource);
  if (auto bad = join(parts, head, to, &root.bytes)) return bad;
  if (root.bytes > flow.max_bytes) return too_large(flow);
  const auto& edge = core.spec().edges[static_cast<std::size_t>(step.edge)];
  const auto& way = parts.front()->way;
  to.way.assign(way.begin(), way.begin() + core.tree().stage(edge.join).rows);
  to.route = route_of(parts);
  for (const auto* part : parts) to.executed_ns = std::max(to.executed_ns, part->executed_ns);
  return {};
}

void set_limits(const Row& row, pipeline::RootArrival& wished) {
  const Call& call = *row.call;
  const auto until = [&](TimeNs limit) {
    return row.flow->pressed ? row.flow->state->within_patience(row.flow->tenant, call.received_ns, limit) : limit;
  };
  const TimeNs deadline = call.waiting_deadline();
  wished.due = until(call.bulk() ? deadline : std::min(call.received_ns + call.model->slo_ns, deadline));
  wished.deadline = until(deadline);
}

// Tells the scheduler which variants are bodies, whose batches choose their token counts.
void set_bodies(const FlowSpec& flow, dispatch::Scheduler& scheduler) {
  for (const auto& stage : flow.stages) {
    for (const auto& variant : stage.variants) {
      const auto id = variant.model->variant;
      if (!stage.counts || stage.counts->variants.front() != id) scheduler.clear_body(id);
    }
    if (stage.counts) scheduler.set_body(stage.counts->variants, solve::tokens::make_chooser(*stage.counts));
  }
}

// Charges the worker time of a visit's row to its tenant.
void took_worker(const VisitCall& visit, const Row& row, FlowBooks& books) {
  FlowState& state = *visit.root->state;
  if (state.model->flow->tenants.empty() || visit.root->row->call->kind == Call::Kind::kAudit) return;
  const auto tenant = visit.root->row->flow->tenant;
  const double seconds = static_cast<double>(row.executed_ns()) / 1e9 / std::max(row.batch_rows, 1);
  state.tenants.took(tenant, seconds, row.queued_ns(), state.model->slo_ns - state.least());
  books.took(*state.model, tenant, seconds);
}

}  // namespace

std::shared_ptr<FlowState> Visits::state_of(const std::shared_ptr<const ModelSpec>& model, TimeNs now) {
  auto& state = in_force_.at(model->variant);
  if (state == nullptr || state->model->flow->content != model->flow->content) {
    const auto before = state;  // its roots hold it until they end
    state = std::make_shared<FlowState>(model, scheduler_);
    books_.begin(*model, before != nullptr && before->model->flow->tenants != model->flow->tenants);
    set_bodies(*model->flow, scheduler_);
    std::erase_if(states_, [](const auto& old) { return old->core.roots() == 0; });
    states_.push_back(state);
  }
  if (state->plan_content != model->flow->plan_content) {
    state->plan_content = model->flow->plan_content;
    state->core.apply(model->flow->plan, now);
  }
  return state;
}

void Visits::begin(Call& call, TimeNs now, Effects& effects) {
  const bool own = call.kind == Call::Kind::kAudit;
  if (const auto& now_there = in_force_.at(call.model->variant);
      own && now_there != nullptr && now_there->model->flow->content != call.model->flow->content) {
    desk_.fail(call, {Code::kUnavailable, "the pipeline has changed"}, Call::kNoRow, now, effects);
    return;
  }
  const auto state = state_of(call.model, now);
  pipeline::RootArrival wished;
  std::size_t tenant = 0;
  if (auto bad = wishes_of(call, *state, wished, tenant)) {
    desk_.fail(call, std::move(*bad), Call::kNoRow, now, effects);
    return;
  }
  const bool pressed = !own && state->tenants.price(tenant) > 1;
  for (auto& row : call.rows) {  // all are counted, whichever is refused
    row.flow = std::make_unique<FlowRow>(FlowRow{.state = state, .tenant = tenant, .pressed = pressed});
  }
  for (auto& row : call.rows) {
    if (call.fault.code == Code::kOk) begin_roots(row, wished, now, effects);
  }
}

void Visits::begin_roots(Row& row, pipeline::RootArrival wished, TimeNs now, Effects& effects) {
  Call& call = *row.call;
  const auto& state = row.flow->state;
  const auto& flow = *call.model->flow;
  const auto all = std::make_shared<FlowSource>();  // of all its roots
  std::uint64_t bytes = 0;
  enter_with(call, row.index, *all, &bytes);
  const auto refuse = [&](pipeline::DropReason reason) {
    FlowRoot none;
    none.state = state;
    desk_.fail(call, bytes > flow.max_bytes ? too_large(flow) : fault_of(none, *row.flow, reason), row.index, now,
               effects);
  };
  if (all->count > static_cast<std::size_t>(flow.core.max_open) || bytes > flow.max_bytes) {
    return refuse(pipeline::DropReason::kFanout);
  }
  // Stages behind the entry never refuse for a full queue, so their rows are counted here.
  const double to_come = (state->core.roots() + static_cast<double>(all->count)) * (state->best.rows - 1);
  const auto stages = static_cast<double>(flow.stages.size());
  if (state->core.roots() > 0 && to_come > config_.dispatch().max_queued() * (stages - 1)) {
    return refuse(pipeline::DropReason::kOverload);
  }
  row.flow->all = static_cast<std::int32_t>(all->count);
  if (call.kind != Call::Kind::kAudit) books_.arrived(*state->model, 0, all->count);
  set_limits(row, wished);
  wished.utility /= row.flow->all;
  for (std::size_t part = 0; part < all->count; ++part) {
    auto* root = new FlowRoot{.row = &row,
                              .state = state,
                              .part = static_cast<std::int32_t>(part),
                              .number = numbers_++,
                              .bytes = bytes,
                              .sources = {all}};
    row.flow->roots.push_back(root);
    wished.tag = reinterpret_cast<std::uint64_t>(root);
    wished.length = call.model->of_tensors() ? row.length : static_cast<std::int32_t>(all->tokens(part));
    root->id = state->core.arrive(wished, now);
  }
}

void Visits::pump(TimeNs now, Effects& effects) {
  if (pumping_ || states_.empty()) return;
  pumping_ = true;
  for (bool more = true; more;) {
    more = false;
    for (const auto& state : states_) {
      pipeline::Step step;
      while (state->core.next(now, step)) {
        more = true;
        take(*state, step, now, effects);
      }
    }
    if (ended_.empty()) continue;
    more = true;
    VisitCall* const visit = ended_.front();
    ended_.pop_front();
    report(*visit, now, effects);
  }
  pumping_ = false;
}

void Visits::take(FlowState& state, const pipeline::Step& step, TimeNs now, Effects& effects) {
  auto& root = *reinterpret_cast<FlowRoot*>(step.tag);
  auto& counts = books_.at(*state.model, step.stage);
  switch (step.kind) {
    case pipeline::Step::Kind::kEnter: {
      counts.set_visits(counts.visits() + 1);
      counts.set_rerouted(counts.rerouted() + (step.from >= 0 ? 1 : 0));
      root.row->flow->rerouted += step.from >= 0 ? 1 : 0;
      enter_stage(root, step, now, effects);
      return;
    }
    case pipeline::Step::Kind::kJoin:
      join_rows(root, step, now);
      return;
    case pipeline::Step::Kind::kCancel: {
      // An unread expiry would name a handle that another row may have by now.
      desk_.settle(effects, now);
      VisitCall* const visit = std::exchange(state.visits.at(step.visit), nullptr);
      if (visit == nullptr) return;
      visit->id = pipeline::kNone;
      if (!visit->ended) desk_.fail(*visit, {Code::kCancelled, "not needed"}, Call::kNoRow, now, effects);
      return;
    }
    case pipeline::Step::Kind::kDrop:
      bump(counts.mutable_dropped(), step.reason);
      if (root.row != nullptr) dropped(root, step);
      return;
    case pipeline::Step::Kind::kExit:
      root_ended(root, step, now, effects);
      return;
  }
}

void Visits::join_rows(FlowRoot& root, const pipeline::Step& step, TimeNs now) {
  FlowState& state = *root.state;
  const auto source = std::make_shared<FlowSource>();
  if (auto bad = join_parts(root, step, *source)) {
    root.fault = std::move(*bad);
    state.core.failed(step.visit, now);
    return;
  }
  books_.joined(*state.model, step.stage, step.edge);
  root.sources.push_back(source);
  const auto& head = state.model->flow->stages[static_cast<std::size_t>(step.stage)];
  state.core.joined(step.visit, source->length(*head.variants.front().model),
                    reinterpret_cast<std::uint64_t>(source.get()), now);
}

void Visits::enter_stage(FlowRoot& root, const pipeline::Step& step, TimeNs now, Effects& effects) {
  const auto& source = step.edge < 0 ? *root.sources.front() : *reinterpret_cast<const FlowSource*>(step.parent);
  auto* visit = new VisitCall(root, source, step, *root.row->call, now);
  auto& visits = root.state->visits;
  if (visits.size() <= step.visit) visits.resize(step.visit + 1);
  visits[step.visit] = visit;
  auto bad = visit->write();
  if (bad && step.edge >= 0 && !source.inputs.empty()) {  // the client did not write it
    const auto& name = root.state->model->flow->stages[static_cast<std::size_t>(step.stage)].name;
    bad = Fault{Code::kInternal, "what goes to stage '" + name + "' of the pipeline does not fit it: " + bad->message};
  }
  visit->rows = std::vector<Row>(1);
  visit->open_rows = 1;
  visit->holds.store(1, std::memory_order_relaxed);
  Row& row = visit->rows.front();
  row.call = visit;
  if (bad) {
    desk_.fail(*visit, std::move(*bad), Call::kNoRow, now, effects);
    return;
  }
  row.length = visit->request.lengths().front();  // the last piece of a row is shorter
  desk_.count_arrival(row);
  const auto admitted = desk_.arrive(row, visit->deadline_ns, now, effects);
  if (admitted.handle == dispatch::kNone) {
    visit->full = admitted.admission == dispatch::Admission::kFull;
    desk_.fail(*visit, admission_.refusal(row, admitted, now), Call::kNoRow, now, effects);
  }
}

namespace {

// Reports a failed visit that the pipeline has not heard of yet.
void tell_failed(FlowState& state, pipeline::VisitId id, const VisitCall& visit, bool again, TimeNs now) {
  if (again) {
    state.core.again(id, now);
  } else if (visit.evicted) {
    state.core.refused(id, pipeline::DropReason::kEvicted, now);
  } else if (visit.full) {
    state.core.refused(id, pipeline::DropReason::kOverload, now);
  } else if (visit.fault.code == Code::kDeadlineExceeded || visit.fault.overload) {
    state.core.refused(id, pipeline::DropReason::kDeadline, now);
  } else {
    state.core.failed(id, now);
  }
}

// Makes the children on its edges, which the root keeps.
MaybeFault make_children(const VisitCall& visit, const Judged& judged, FlowBooks& books,
                         std::vector<pipeline::Children>& children) {
  FlowRoot& root = *visit.root;
  const FlowState& state = *root.state;
  const auto& flow = *state.model->flow;
  const Row& row = visit.rows.front();
  const auto variant = static_cast<std::size_t>(visit.variant);
  auto* made = books.at(*state.model, visit.stage).mutable_variants(visit.variant)->mutable_made();
  for (const std::int32_t e : judged.edges) {
    const auto& edge = visit.at().edges[static_cast<std::size_t>(e)];
    const auto source = std::make_shared<FlowSource>();
    root.bytes += sizeof(FlowSource);
    if (auto bad = expand(edge, visit.of(), variant, *visit.source, static_cast<std::size_t>(visit.index), row, *source,
                          &root.bytes)) {
      return bad;
    }
    if (source->count == 0) continue;
    const auto to = static_cast<std::size_t>(state.core.spec().edges[static_cast<std::size_t>(edge.core)].to);
    root.sources.push_back(source);
    source->way = visit.way();
    source->route = visit.route();
    source->executed_ns = visit.source->executed_ns + row.executed_ns();
    if (goes_beside(state, edge)) {
      source->before = judged.answer;
      root.bytes += row.response->size() / static_cast<std::size_t>(std::max(row.batch_rows, 1));
    }
    if (!edge.weights.empty()) {
      source->weights = edge.weights;
      source->said = judged.together.empty() ? judged.said.q : judged.together;
    }
    if (!edge.expand.join) {
      bump(made, e, source->count);
      books.arrived(*state.model, static_cast<std::int32_t>(to), source->count);
    }
    children.push_back({.edge = edge.core,
                        .length = source->length(*flow.stages[to].variants.front().model),
                        .count = static_cast<std::int32_t>(source->count),
                        .tag = reinterpret_cast<std::uint64_t>(source.get())});
  }
  if (root.bytes > flow.max_bytes) return too_large(flow);
  return {};
}

}  // namespace

void Visits::report(VisitCall& visit, TimeNs now, Effects& effects) {
  if (visit.id == pipeline::kNone) return;
  FlowRoot& root = *visit.root;
  FlowState& state = *root.state;
  const auto id = visit.id;
  const auto leave = [&] {
    visit.id = pipeline::kNone;
    state.visits.at(id) = nullptr;
  };
  if (visit.fault.code != Code::kOk) {
    leave();
    root.fault = visit.fault;
    tell_failed(state, id, visit, visit.no_instance && visit.others_fit(scheduler_), now);
    return;
  }
  const Row& row = visit.rows.front();
  const auto& spec = visit.at();
  books_.answered(*state.model, visit.stage, visit.variant);
  root.row->padded += row.padded;
  root.row->demoted = root.row->demoted || row.demoted;
  root.row->batch_rows = std::max(root.row->batch_rows, row.batch_rows);
  took_worker(visit, row, books_);
  const Judged judged = judge(visit);
  const bool could_go_on =
      std::any_of(spec.guards.begin(), spec.guards.end(), [](const auto& guard) { return guard.follows_load(); });
  if (!spec.counts && visit.variant != state.best.variants[static_cast<std::size_t>(visit.stage)]) root.best = false;
  if (judged.edges.empty() && could_go_on) root.best = false;
  std::vector<pipeline::Children> children;
  if (auto bad = make_children(visit, judged, books_, children)) {
    root.fault = std::move(*bad);
    leave();
    state.core.failed(id, now);
    return;
  }
  std::uint64_t made = 0;
  for (const auto& each : children) made += static_cast<std::uint64_t>(each.count);
  books_.became(*state.model, visit.stage, visit.variant, made);
  auto& to = *root.row->flow;
  if (children.empty()) {
    const auto& by_kind = visit.of().by_kind;
    const auto kind = visit.kind_of(row);
    if (kind < by_kind.size() && state.core.tree().variants() == std::ssize(spec.variants)) {
      root.accuracy = by_kind[kind];
    }
    audits_.hear(visit, effects);
    to.executed_ns = std::max(to.executed_ns, visit.source->executed_ns + row.executed_ns());
  }
  // A row whose edge made no children has no answer.
  if (judged.edges.empty() || spec.told) to.answers.push_back(*judged.answer);
  leave();
  state.core.finish(id, children, now);
}

void Visits::root_ended(FlowRoot& root, const pipeline::Step& step, TimeNs now, Effects& effects) {
  const std::unique_ptr<FlowRoot> whose(&root);
  Row* const row = root.row;
  if (row == nullptr) return;
  auto& flow = *row->flow;
  std::erase(flow.roots, &root);
  flow.accuracy += (root.accuracy < 0 || step.failed ? step.accuracy : root.accuracy) / flow.all;
  flow.ended += step.failed ? 0 : 1;
  flow.best = flow.best && root.best;
  // A partial answer suffices if some part of the row has been answered, or still may be.
  const bool partial = root.state->model->flow->core.on_drop == pipeline::OnDrop::kPartial;
  if (partial ? flow.ended == 0 && flow.roots.empty() : step.failed) {
    root.row = nullptr;
    desk_.fail(*row->call, fault_of(root, flow, static_cast<pipeline::DropReason>(std::max(flow.reason, 0))),
               row->index, now, effects);
    if (row->state != Row::State::kEnded) desk_.end(*row, now, effects);
  } else if (flow.roots.empty()) {
    audits_.hear(std::as_const(*row), effects);
    desk_.end(*row, now, effects);
  }
}

void Visits::look(TimeNs now) {
  for (const auto& state : states_) {
    if (state->core.roots() > 0) state->core.look(now);
    if (!state->model->flow->tenants.empty()) state->tenants.look(now);
  }
}

void Visits::ended(VisitCall& visit) {
  visit.ended = true;
  if (visit.id != pipeline::kNone) ended_.push_back(&visit);
}

void Visits::leave(Row& row, TimeNs now) {
  if (row.call->kind != Call::Kind::kAudit) books_.ended(row, now);
  for (FlowRoot* root : std::exchange(row.flow->roots, {})) {
    root->row = nullptr;
    root->state->core.cancel(root->id, now);
  }
}

}  // namespace arlo::gateway
