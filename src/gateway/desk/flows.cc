// The desk's pipelines: starts visits, reports their answers to the pipeline, and carries out its decisions.
#include <algorithm>
#include <bit>
#include <utility>

#include "base/utf8.h"
#include "gateway/desk/desk.h"
#include "gateway/desk/expand.h"
#include "gateway/desk/judge.h"

namespace arlo::gateway {

namespace pipeline = flow::pipeline;

namespace {

Fault fault_of(const FlowRoot& root, const FlowRow& row, pipeline::DropReason reason) {
  Fault fault{Code::kDeadlineExceeded, ""};
  fault.overload = true;
  const bool no_time = reason == pipeline::DropReason::kDeadline || reason == pipeline::DropReason::kEvicted ||
                       reason == pipeline::DropReason::kOverload;
  if (no_time && row.pressed) {
    const auto tenant = row.tenant;
    const auto& all = root.state->model->flow->tenants;
    fault.code = Code::kResourceExhausted;
    fault.message =
        (tenant < all.size() ? "tenant '" + all[tenant].name + "' takes" : "rows that name no tenant take") +
        " more than their share of workers, which are too few for all, so this one was not to wait: try "
        "again later";
    return fault;
  }
  switch (reason) {
    case pipeline::DropReason::kBudget:
      fault.message = "a stage of the pipeline took longer than its budget, and no quicker way is left";
      return fault;
    case pipeline::DropReason::kDeadline:
      fault.message = "no way through the pipeline that is left can be done by the deadline";
      return fault;
    case pipeline::DropReason::kEvicted:
      fault.message = "evicted: it cannot be done by its deadline beside rows that are worth more";
      return fault;
    case pipeline::DropReason::kOverload:
      fault.code = Code::kResourceExhausted;
      fault.message =
          "no variant of the pipeline can take the row: its queues are full, or none that is there is as accurate as "
          "min_accuracy asks: try again later";
      return fault;
    case pipeline::DropReason::kFanout:
      fault.code = Code::kResourceExhausted;
      fault.overload = false;
      fault.message = "the row becomes more rows than the pipeline's max_children (" +
                      std::to_string(root.state->model->flow->core.max_open) + "): send it in parts";
      return fault;
    case pipeline::DropReason::kFailed:
      break;
  }
  if (root.fault.code != Code::kOk) return root.fault;
  return {Code::kUnavailable, "a stage of the pipeline failed the row"};
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

}  // namespace

std::shared_ptr<FlowState> Desk::flow_of(const std::shared_ptr<const ModelSpec>& model, TimeNs now) {
  auto& state = flows_.at(model->variant);
  if (state == nullptr || state->model->flow->content != model->flow->content) {
    const auto before = state;  // its roots hold it until they end
    state = std::make_shared<FlowState>(model, scheduler_);
    flow_books_.begin(*model, before != nullptr && before->model->flow->tenants != model->flow->tenants);
    for (const auto& stage : model->flow->stages) {
      for (const auto& variant : stage.variants) {
        const auto id = variant.model->variant;
        if (!stage.counts || stage.counts->variants.front() != id) scheduler_.clear_body(id);
      }
      if (stage.counts) scheduler_.set_body(stage.counts->variants, solve::tokens::make_chooser(*stage.counts));
    }
    std::erase_if(flow_states_, [](const auto& old) { return old->core.roots() == 0; });
    flow_states_.push_back(state);
  }
  if (state->plan_content != model->flow->plan_content) {
    state->plan_content = model->flow->plan_content;
    state->core.apply(model->flow->plan, now);
  }
  return state;
}

// All rows of the call arrive; pump() then runs the pipeline's steps.
void Desk::begin_flow(Call& call, TimeNs now, Effects& effects) {
  const bool own = call.kind == Call::Kind::kAudit;
  if (const auto& now_there = flows_.at(call.model->variant);
      own && now_there != nullptr && now_there->model->flow->content != call.model->flow->content) {
    fail(call, {Code::kUnavailable, "the pipeline has changed"}, Call::kNoRow, now, effects);
    return;
  }
  const auto state = flow_of(call.model, now);
  pipeline::RootArrival wished;
  std::size_t tenant = 0;
  if (auto bad = wishes_of(call, *state, wished, tenant)) {
    fail(call, std::move(*bad), Call::kNoRow, now, effects);
    return;
  }
  for (auto& row : call.rows) {  // all are counted, whichever is refused
    row.flow = std::make_unique<FlowRow>();
    row.flow->state = state;
    row.flow->tenant = tenant;
    row.flow->pressed = !own && state->tenants.price(tenant) > 1;
  }
  for (auto& row : call.rows) {
    if (call.fault.code == Code::kOk) begin_roots(row, wished, now, effects);
  }
}

void Desk::begin_roots(Row& row, pipeline::RootArrival wished, TimeNs now, Effects& effects) {
  Call& call = *row.call;
  const auto& state = row.flow->state;
  const auto& flow = *call.model->flow;
  const auto all = std::make_shared<FlowSource>();  // of all its roots
  std::uint64_t bytes = 0;
  if (call.model->of_tensors()) {
    enter_with(call, row.index, *all, &bytes);
  } else {
    auto ids = std::make_shared<std::vector<std::int64_t>>();
    call.request.ids(row.index, *ids);
    bytes = ids->size() * sizeof(std::int64_t);
    all->of_ids(std::move(ids), flow.chunks);
  }
  const auto refuse = [&](pipeline::DropReason reason) {
    FlowRoot none;
    none.state = state;
    fail(call, bytes > flow.max_bytes ? too_large(flow) : fault_of(none, *row.flow, reason), row.index, now, effects);
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
  if (call.kind != Call::Kind::kAudit) flow_books_.stages(*call.model).front().arrived += all->count;
  const auto until = [&](TimeNs limit) {
    return row.flow->pressed ? state->within_patience(row.flow->tenant, call.received_ns, limit) : limit;
  };
  const TimeNs deadline = call.waiting_deadline();
  wished.due = until(call.bulk() ? deadline : std::min(call.received_ns + call.model->slo_ns, deadline));
  wished.deadline = until(deadline);
  wished.utility /= row.flow->all;
  for (std::size_t part = 0; part < all->count; ++part) {
    auto* root = new FlowRoot;
    root->row = &row;
    root->state = state;
    root->part = static_cast<std::int32_t>(part);
    root->number = journeys_++;
    root->bytes = bytes;
    root->sources.push_back(all);
    row.flow->roots.push_back(root);
    wished.tag = reinterpret_cast<std::uint64_t>(root);
    wished.length = call.model->of_tensors() ? row.length : static_cast<std::int32_t>(all->tokens(part));
    root->id = state->core.arrive(wished, now);
  }
}

// Carries out the pipelines' decisions and reports ended visits to them, until neither remains.
void Desk::pump(TimeNs now, Effects& effects) {
  if (pumping_ || flow_states_.empty()) return;
  pumping_ = true;
  for (bool more = true; more;) {
    more = false;
    for (const auto& state : flow_states_) {
      pipeline::Step step;
      while (state->core.next(now, step)) {
        more = true;
        take(*state, step, now, effects);
      }
    }
    if (ended_visits_.empty()) continue;
    more = true;
    VisitCall* const visit = ended_visits_.front();
    ended_visits_.pop_front();
    visit_ended(*visit, now, effects);
  }
  pumping_ = false;
}

void Desk::take(FlowState& state, const pipeline::Step& step, TimeNs now, Effects& effects) {
  auto& root = *reinterpret_cast<FlowRoot*>(step.tag);
  auto& counts = flow_books_.stages(*state.model);
  switch (step.kind) {
    case pipeline::Step::Kind::kEnter: {
      auto& count = counts.at(static_cast<std::size_t>(step.stage));
      ++count.visits;
      count.rerouted += step.from >= 0 ? 1 : 0;
      root.row->flow->rerouted += step.from >= 0 ? 1 : 0;
      enter_stage(root, step, now, effects);
      return;
    }
    case pipeline::Step::Kind::kJoin:
      join_rows(root, step, now);
      return;
    case pipeline::Step::Kind::kCancel: {
      // An unread expiry would name a handle that another row may have by now.
      settle(effects, now);
      VisitCall* const visit = std::exchange(state.visits.at(step.visit), nullptr);
      if (visit == nullptr) return;
      visit->id = pipeline::kNone;
      if (!visit->ended) fail(*visit, {Code::kCancelled, "not needed"}, Call::kNoRow, now, effects);
      return;
    }
    case pipeline::Step::Kind::kDrop:
      ++counts.at(static_cast<std::size_t>(step.stage)).dropped.at(static_cast<std::size_t>(step.reason));
      if (root.row == nullptr) return;
      if (step.reason != pipeline::DropReason::kFanout && step.reason != pipeline::DropReason::kFailed &&
          root.row->call->kind != Call::Kind::kAudit) {
        state.tenants.given_up(root.row->flow->tenant);
      }
      ++root.row->flow->dropped;
      if (root.row->flow->reason < 0) root.row->flow->reason = static_cast<std::int32_t>(step.reason);
      if (step.falls_back) falls_back(*root.row->flow, *reinterpret_cast<const FlowSource*>(step.parent));
      return;
    case pipeline::Step::Kind::kExit:
      root_ended(root, step, now, effects);
      return;
  }
}

// Joins the products of a fork's row into one row, in the order in which the fork made them.
void Desk::join_rows(FlowRoot& root, const pipeline::Step& step, TimeNs now) {
  FlowState& state = *root.state;
  const FlowSpec& flow = *state.model->flow;
  std::vector<const FlowSource*> parts;
  for (const auto& part : state.core.parts(step.visit)) {
    parts.push_back(reinterpret_cast<const FlowSource*>(part.tag));
  }
  std::sort(parts.begin(), parts.end(), [](const auto* a, const auto* b) { return a->way < b->way; });
  const auto& head = *flow.stages[static_cast<std::size_t>(step.stage)].variants.front().model;
  const auto source = std::make_shared<FlowSource>();
  root.bytes += sizeof(FlowSource);
  auto bad = join(parts, head, *source, &root.bytes);
  if (!bad && root.bytes > flow.max_bytes) bad = too_large(flow);
  if (bad) {
    root.fault = std::move(*bad);
    state.core.failed(step.visit, now);
    return;
  }
  const auto& edge = state.core.spec().edges[static_cast<std::size_t>(step.edge)];
  const auto& way = parts.front()->way;
  source->way.assign(way.begin(), way.begin() + state.core.tree().stage(edge.join).rows);
  source->route = route_of(parts);
  for (const auto* part : parts) source->executed_ns = std::max(source->executed_ns, part->executed_ns);
  auto& counts = flow_books_.stages(*state.model);
  ++counts.at(static_cast<std::size_t>(step.stage)).arrived;
  const auto tail = static_cast<std::size_t>(edge.from);
  const auto& edges = flow.stages[tail].edges;
  const auto at =
      std::find_if(edges.begin(), edges.end(), [&](const auto& e) { return e.core == step.edge; }) - edges.begin();
  ++counts.at(tail).variants.front().made.at(static_cast<std::size_t>(at));  // of no single variant
  root.sources.push_back(source);
  state.core.joined(step.visit, source->length(head), reinterpret_cast<std::uint64_t>(source.get()), now);
}

void Desk::enter_stage(FlowRoot& root, const pipeline::Step& step, TimeNs now, Effects& effects) {
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
    fail(*visit, std::move(*bad), Call::kNoRow, now, effects);
    return;
  }
  row.length = visit->request.lengths().front();  // the last piece of a row is shorter
  books(*visit).arrived(row.length, scheduler_.ideal_level(row.length, visit->model->variant));
  const auto admitted = arrive(row, visit->deadline_ns, now, effects);
  if (admitted.handle == dispatch::kNone) {
    visit->full = admitted.admission == dispatch::Admission::kFull;
    fail(*visit, refusal(row, admitted, now), Call::kNoRow, now, effects);
  }
}

namespace {

// The outcome of a row after a visit's answer.
struct Judged {
  Said said;
  std::vector<std::int32_t> edges;           // edges it takes; none: it ends there
  std::vector<double> together;              // probabilities over its way so far, if they are mixed
  std::shared_ptr<const FlowAnswer> answer;  // may be the client's answer
};

// Whether the answer is mixed with that of the edge's head, or is used if none comes.
bool goes_beside(const FlowState& state, const FlowSpec::Edge& edge) {
  return state.core.spec().edges[static_cast<std::size_t>(edge.core)].falls_back;
}

Judged judge(const VisitCall& visit) {
  const FlowState& state = *visit.root->state;
  const auto& spec = visit.at();
  const Row& row = visit.rows.front();
  Judged judged;
  if (spec.judged) judged.said = said_of(visit.of(), row.parsed, row.length);
  judged.edges = edges_of(spec, static_cast<std::size_t>(visit.variant), judged.said,
                          {.row = visit.root->number, .length = row.length}, state.core, visit.id);
  const auto& from = *visit.source;
  if (!from.weights.empty()) judged.together = mixed(from.weights, from.said, judged.said.q);
  const bool beside = std::any_of(judged.edges.begin(), judged.edges.end(), [&](std::int32_t e) {
    return goes_beside(state, spec.edges[static_cast<std::size_t>(e)]);
  });
  if (!judged.edges.empty() && !spec.told && !beside) return judged;
  auto answer = std::make_shared<FlowAnswer>(FlowAnswer{.stage = visit.stage,
                                                        .variant = visit.variant,
                                                        .tokens = visit.tokens,
                                                        .way = visit.way(),
                                                        .route = visit.route(),
                                                        .body = row.response,
                                                        .parsed = row.parsed,
                                                        .made = nullptr,
                                                        .last = judged.edges.empty()});
  if (!judged.together.empty()) set_probabilities(*answer, visit.of().logits, judged.together);
  judged.answer = std::move(answer);
  return judged;
}

// Makes the children on its edges, which the root keeps.
MaybeFault make_children(const VisitCall& visit, const Judged& judged, std::vector<FlowStageCounts>& counts,
                         std::vector<pipeline::Children>& children) {
  FlowRoot& root = *visit.root;
  const FlowState& state = *root.state;
  const auto& flow = *state.model->flow;
  const Row& row = visit.rows.front();
  const auto variant = static_cast<std::size_t>(visit.variant);
  auto& made = counts.at(static_cast<std::size_t>(visit.stage)).variants.at(variant).made;
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
      made.at(static_cast<std::size_t>(e)) += source->count;
      counts.at(to).arrived += source->count;
    }
    children.push_back({.edge = edge.core,
                        .length = source->length(*flow.stages[to].variants.front().model),
                        .count = static_cast<std::int32_t>(source->count),
                        .tag = reinterpret_cast<std::uint64_t>(source.get())});
  }
  if (root.bytes > flow.max_bytes) return too_large(flow);
  return {};
}

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

}  // namespace

void Desk::visit_ended(VisitCall& visit, TimeNs now, Effects& effects) {
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
    tell_failed(state, id, visit, visit.no_instance && others_fit(visit), now);
    return;
  }
  const Row& row = visit.rows.front();
  const auto stage = static_cast<std::size_t>(visit.stage);
  const auto& spec = visit.at();
  auto& counts = flow_books_.stages(*state.model);
  auto& count = counts.at(stage);
  auto& by_variant = count.variants.at(static_cast<std::size_t>(visit.variant));
  ++count.answered;
  ++by_variant.answered;
  root.row->padded += row.padded;
  root.row->demoted = root.row->demoted || row.demoted;
  root.row->batch_rows = std::max(root.row->batch_rows, row.batch_rows);
  took_worker(visit, row);
  const Judged judged = judge(visit);
  const bool could_go_on =
      std::any_of(spec.guards.begin(), spec.guards.end(), [](const auto& guard) { return guard.follows_load(); });
  if (!spec.counts && visit.variant != state.best.variants[stage]) root.best = false;
  if (judged.edges.empty() && could_go_on) root.best = false;
  std::vector<pipeline::Children> children;
  if (auto bad = make_children(visit, judged, counts, children)) {
    root.fault = std::move(*bad);
    leave();
    state.core.failed(id, now);
    return;
  }
  std::uint64_t made = 0;
  for (const auto& each : children) made += static_cast<std::uint64_t>(each.count);
  const std::size_t bin = made == 0 ? 0 : static_cast<std::size_t>(std::bit_width(made - 1)) + 1;
  ++count.children[std::min(bin, count.children.size() - 1)];
  count.children_sum += made;
  auto& to = *root.row->flow;
  if (children.empty()) {
    const auto& by_kind = visit.of().by_kind;
    const auto kind = visit.kind_of(row);
    if (kind < by_kind.size() && state.core.tree().variants() == std::ssize(spec.variants)) {
      root.accuracy = by_kind[kind];
    }
    audits_.hear(visit, effects);
    ++count.ends;
    ++by_variant.ended;
    to.executed_ns = std::max(to.executed_ns, visit.source->executed_ns + row.executed_ns());
  }
  // A row whose edge made no children has no answer.
  if (judged.edges.empty() || spec.told) to.answers.push_back(*judged.answer);
  leave();
  state.core.finish(id, children, now);
}

// No further answer comes: the previous one is used.
void Desk::falls_back(FlowRow& row, const FlowSource& from) {
  const auto& before = *from.before;
  const auto told = std::find_if(row.answers.begin(), row.answers.end(), [&](const auto& each) {
    return each.stage == before.stage && each.way == before.way;
  });
  auto& kept = told == row.answers.end() ? row.answers.emplace_back(before) : *told;
  kept.last = true;
  row.executed_ns = std::max(row.executed_ns, from.executed_ns);
}

bool Desk::others_fit(const VisitCall& visit) const {
  const auto& variants = visit.state->model->flow->stages[static_cast<std::size_t>(visit.stage)].variants;
  return std::any_of(variants.begin(), variants.end(), [&](const auto& one) {
    return scheduler_.fits_any(visit.rows.front().length, one.model->variant);
  });
}

void Desk::root_ended(FlowRoot& root, const pipeline::Step& step, TimeNs now, Effects& effects) {
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
  const bool nothing = flow.ended == 0 && flow.roots.empty();
  if (partial ? nothing : step.failed) {
    root.row = nullptr;
    fail(*row->call, fault_of(root, flow, static_cast<pipeline::DropReason>(std::max(flow.reason, 0))), row->index, now,
         effects);
    if (row->state != Row::State::kEnded) end(*row, now, effects);
  } else if (flow.roots.empty()) {
    audits_.hear(std::as_const(*row), effects);
    end(*row, now, effects);
  }
}

// Charges the worker time of a visit's row to its tenant.
void Desk::took_worker(const VisitCall& visit, const Row& row) {
  FlowState& state = *visit.root->state;
  if (state.model->flow->tenants.empty() || visit.root->row->call->kind == Call::Kind::kAudit) return;
  const auto tenant = visit.root->row->flow->tenant;
  const double seconds = static_cast<double>(row.executed_ns()) / 1e9 / std::max(row.batch_rows, 1);
  state.tenants.took(tenant, seconds, row.queued_ns(), state.model->slo_ns - state.least());
  flow_books_.took(*state.model, tenant, seconds);
}

void Desk::look_at_flows(TimeNs now) {
  for (const auto& state : flow_states_) {
    if (state->core.roots() > 0) state->core.look(now);
    if (!state->model->flow->tenants.empty()) state->tenants.look(now);
  }
}

}  // namespace arlo::gateway
