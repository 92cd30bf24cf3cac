#include "gateway/desk/flow_call.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kserve.h"

namespace arlo::gateway {
namespace {

constexpr std::size_t kBytesOfToken = 4;  // estimate for a text that is not tokenised yet

std::string raw_of(const std::vector<std::int64_t>& values, std::size_t item) {
  std::string raw(values.size() * item, '\0');
  for (std::size_t i = 0; i < values.size(); ++i) std::memcpy(raw.data() + i * item, &values[i], item);
  return raw;
}

}  // namespace

void FlowSource::of_ids(std::shared_ptr<const std::vector<std::int64_t>> all, const FlowSpec::Chunks& chunks) {
  ids = std::move(all);
  pieces = pieces_of(ids->size(), chunks);
  framed = !pieces.empty();
  if (!framed) pieces.emplace_back(0, static_cast<std::uint32_t>(ids->size()));
  count = pieces.size();
}

std::int32_t FlowSource::length(const ModelSpec& model) const {
  if (inputs.empty()) return static_cast<std::int32_t>(pieces.empty() ? 1 : tokens(0));
  const bool varies =
      texts || std::any_of(model.inputs.begin(), model.inputs.end(), [](const auto& i) { return i.ragged(); });
  if (!varies) return std::max(model.longest, 1);
  std::size_t longest = 1;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::size_t step = texts ? kBytesOfToken : model.inputs[i].ragged() ? model.inputs[i].step() : 0;
    if (step == 0) continue;
    for (const auto& each : inputs[i].of) longest = std::max(longest, each.size() / step);
  }
  return static_cast<std::int32_t>(std::min(longest, static_cast<std::size_t>(std::max(model.longest, 1))));
}

namespace {

std::vector<double> shares_of(const FlowSpec& flow) {
  std::vector<double> shares;
  shares.reserve(flow.tenants.size() + 1);
  for (const auto& tenant : flow.tenants) shares.push_back(tenant.share);
  shares.push_back(shares.empty() ? 1 : *std::min_element(shares.begin(), shares.end()));
  return shares;
}

}  // namespace

FlowState::FlowState(std::shared_ptr<const ModelSpec> of, dispatch::Scheduler& scheduler)
    : model(std::move(of)),
      core(model->flow->core, scheduler),
      best(flow::pipeline::best_way(core.tree())),
      tenants(shares_of(*model->flow)),
      plan_content(0) {}

std::size_t FlowState::tenant_of(std::string_view name) const {
  const auto& all = model->flow->tenants;
  if (all.empty() || name.empty()) return all.size();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == name; });
  return found == all.end() ? all.size() + 1 : static_cast<std::size_t>(found - all.begin());
}

TimeNs FlowState::within_patience(std::size_t tenant, TimeNs came, TimeNs limit) const {
  const TimeNs soonest = came + least();
  if (limit == kNever || limit <= soonest) return limit;
  return soonest + static_cast<TimeNs>(tenants.patience(tenant) * static_cast<double>(limit - soonest));
}

void FlowSource::read(std::size_t piece, std::vector<std::int64_t>& out) const {
  const auto [from, to] = pieces[piece];
  out.clear();
  out.reserve(tokens(piece));
  if (framed) out.push_back(ids->front());
  out.insert(out.end(), ids->begin() + from, ids->begin() + to);
  if (framed) out.push_back(ids->back());
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> pieces_of(std::size_t tokens, const FlowSpec::Chunks& chunks) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pieces;
  if (chunks.window == 0 || tokens <= static_cast<std::size_t>(chunks.window)) return pieces;
  const auto content = static_cast<std::uint32_t>(chunks.window) - 2;
  const auto end = static_cast<std::uint32_t>(tokens) - 1;
  for (std::uint32_t from = 1;; from += static_cast<std::uint32_t>(chunks.stride)) {
    pieces.emplace_back(from, std::min(from + content, end));
    if (from + content >= end) return pieces;
  }
}

VisitCall::VisitCall(FlowRoot& begun, const FlowSource& from, const flow::pipeline::Step& step, const Call& call,
                     TimeNs now)
    : state(begun.state),
      root(&begun),
      source(from.shared_from_this()),
      id(step.visit),
      stage(step.stage),
      edge(step.edge),
      index(step.edge < 0 ? begun.part : step.index),
      follows(step.follows),
      due(step.due),
      utility(step.utility) {
  variant = state->core.tree().variant_in_stage(step.node, stage);
  tokens = of().tokens;
  if (const auto& tasks = call.request.tasks(); !tasks.empty()) task = tasks[begun.row->index];
  lane = call.lane;
  router = call.router;
  model = of().model;
  client = call.client;
  kind = Kind::kVisit;
  as_bulk = call.bulk();
  received_ns = now;
  deadline_ns = std::min(step.deadline, call.deadline_ns);
}

MaybeFault VisitCall::write() {
  const auto child = static_cast<std::size_t>(index);
  if (model->of_tensors()) {
    std::vector<std::string_view> cells;
    cells.reserve(source->inputs.size());
    for (std::size_t i = 0; i < source->inputs.size(); ++i) cells.push_back(source->cell(i, child));
    return request.bind_row(*model, of().answers, cells);
  }
  inference::ModelInferRequest message;
  const auto add = [&](const auto& name, const std::string& datatype, std::string_view bytes) {
    auto* tensor = message.add_inputs();
    tensor->set_name(std::string(name));
    tensor->set_datatype(datatype);
    tensor->add_shape(1);
    message.add_raw_input_contents(bytes.data(), bytes.size());
    return tensor;
  };
  if (source->texts) {  // over the limit it is cut on the side that the model's tokenizer cuts
    const auto text = source->cell(0, child);
    const auto size = static_cast<std::uint32_t>(text.size());
    add(kText, "BYTES", std::string(reinterpret_cast<const char*>(&size), sizeof(size)).append(text));
    (*message.mutable_parameters())["truncate"].set_bool_param(true);
  }
  std::vector<std::int64_t> ids;
  if (!source->texts) source->read(source->pieces.size() == 1 ? 0 : child, ids);
  for (const auto& input : model->inputs) {
    if (source->texts || input.role == Role::kOther) continue;  // given a default, as for a client that omits it
    if (input.role == Role::kTensor) {                          // the client's value
      const int at = state->model->find_input(input.name);
      if (at < 0) continue;
      const auto sent = root->row->call->request.cell(root->row->index, static_cast<std::size_t>(at));
      if (sent.empty()) continue;
      auto* tensor = add(input.name, input.datatype, sent);
      tensor->mutable_shape()->Add(input.dims.begin(), input.dims.end());
      continue;
    }
    const auto& values = input.role == Role::kIds ? ids : std::vector<std::int64_t>(ids.size(), 1);
    auto* tensor = add(input.name, input.datatype, raw_of(values, input.item));
    tensor->add_shape(std::ssize(ids));
    tensor->mutable_shape()->Add(input.dims.begin(), input.dims.end());
  }
  for (std::size_t i = 0; i < model->outputs.size(); ++i) {
    if ((of().answers >> i & 1) != 0) message.add_outputs()->set_name(model->outputs[i].name);
  }
  body = message.SerializeAsString();
  if (auto bad = request.parse(body)) return bad;
  return request.bind(*model, {});
}

bool VisitCall::starts_as(dispatch::VariantId as, const FlowState& in_force) {
  if (model->variant == as) return true;
  const auto find = [&](const FlowState& of) {
    const auto& variants = of.model->flow->stages[static_cast<std::size_t>(stage)].variants;
    return std::find_if(variants.begin(), variants.end(), [as](const auto& one) { return one.model->variant == as; }) -
           variants.begin();
  };
  const auto& mine = state->model->flow->stages[static_cast<std::size_t>(stage)].variants;
  const auto own = find(*state);
  if (own < std::ssize(mine)) {
    variant = static_cast<std::int32_t>(own);
    if (this->id != flow::pipeline::kNone) state->core.took(this->id, variant);
    const auto before = std::exchange(model, of().model);
    tokens = of().tokens;
    if (alike(*before, *model)) return true;
    body.clear();
    request = {};
    return !write();
  }
  // The variant may come from a newer deployment than the visit's.
  const auto& stages = in_force.model->flow->stages;
  if (static_cast<std::size_t>(stage) >= stages.size()) return false;
  const auto& theirs = stages[static_cast<std::size_t>(stage)].variants;
  const auto other = find(in_force);
  if (other >= std::ssize(theirs) || !alike(*model, *theirs[static_cast<std::size_t>(other)].model)) return false;
  model = theirs[static_cast<std::size_t>(other)].model;
  tokens = theirs[static_cast<std::size_t>(other)].tokens;
  return true;
}

std::vector<std::pair<std::int32_t, std::int32_t>> VisitCall::way() const {
  auto way = source->way;
  way.emplace_back(edge, index);
  return way;
}

std::string VisitCall::route() const { return source->route.empty() ? model->name : source->route + ">" + model->name; }

bool VisitCall::others_fit(const dispatch::Scheduler& scheduler) const {
  const auto& variants = at().variants;
  return std::any_of(variants.begin(), variants.end(),
                     [&](const auto& one) { return scheduler.fits_any(rows.front().length, one.model->variant); });
}

}  // namespace arlo::gateway
