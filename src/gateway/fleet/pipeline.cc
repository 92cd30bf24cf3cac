#include "gateway/fleet/pipeline.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "gateway/fleet/edges.h"
#include "gateway/fleet/rules.h"

namespace arlo::gateway {
namespace {

namespace pipeline = flow::pipeline;

pipeline::Spec core_of(const v1::Pipeline& from, const FindModel& model) {
  pipeline::Spec to;
  for (const auto& stage : from.stages()) {
    auto& spec = to.stages.emplace_back();
    for (const auto& variant : stage.variants()) {
      spec.variants.push_back({.id = model(variant.model())->variant,
                               .accuracy = variant.accuracy(),
                               .least = static_cast<TimeNs>(variant.least_us()) * 1000,
                               .work = variant.work_s(),
                               .energy = variant.energy()});
    }
    if (!stage.has_tokens()) continue;
    const auto fewest =
        std::min_element(stage.variants().begin(), stage.variants().end(),
                         [](const auto& one, const auto& other) { return one.tokens() < other.tokens(); });
    spec.line = static_cast<std::int32_t>(fewest - stage.variants().begin());
  }
  for (const auto& edge : from.edges()) {
    if (edge.to() < 0) continue;
    to.edges.push_back({.from = static_cast<std::int32_t>(edge.from()),
                        .to = edge.to(),
                        .factor = {edge.factor().begin(), edge.factor().end()},
                        .hop = static_cast<TimeNs>(edge.hop_us()) * 1000,
                        .falls_back = edge.falls_back(),
                        .join = edge.has_join() ? static_cast<std::int32_t>(edge.join()) : -1});
  }
  to.accuracy.assign(from.accuracy().begin(), from.accuracy().end());
  to.follows_load = std::any_of(from.edges().begin(), from.edges().end(),
                                [](const auto& e) { return guard_of(e.guard()).follows_load(); });
  using pipeline::Drop;
  using pipeline::Router;
  to.router = named<Router>(from.router(), {{"price", Router::kPrice}, {"plan", Router::kPlan}, {"maf", Router::kMaf}},
                            "router");
  to.drop = named<Drop>(from.drop(),
                        {{"slack", Drop::kSlack},
                         {"reroute", Drop::kReroute},
                         {"per_task", Drop::kPerTask},
                         {"last", Drop::kLast},
                         {"none", Drop::kNone}},
                        "drop");
  to.on_drop = from.partial() ? pipeline::OnDrop::kPartial : pipeline::OnDrop::kFail;
  to.max_open = static_cast<std::int32_t>(from.max_children());
  return to;
}

pipeline::Plan plan_of(const v1::PipelinePlan& from) {
  pipeline::Plan to;
  to.price = from.price();
  to.demand = from.demand();
  to.share.assign(from.share().begin(), from.share().end());
  to.rate.assign(from.rate().begin(), from.rate().end());
  to.feasible.assign(from.feasible().begin(), from.feasible().end());
  for (const auto us : from.budget_us()) to.budget.push_back(static_cast<TimeNs>(us) * 1000);
  for (const auto us : from.time_us()) to.time.push_back(static_cast<TimeNs>(us) * 1000);
  return to;
}

// The stage's variants by token count, the fewest first, in the scheduler's form.
solve::tokens::TokenCounts counts_of(const v1::PipelineStage& from, const FindModel& model) {
  std::vector<const v1::PipelineVariant*> variants;
  for (const auto& variant : from.variants()) variants.push_back(&variant);
  std::stable_sort(variants.begin(), variants.end(),
                   [](const auto* one, const auto* other) { return one->tokens() < other->tokens(); });
  const v1::TokenRule& rule = from.tokens();
  const auto ns = [](std::uint64_t us) { return static_cast<TimeNs>(us) * 1000; };
  solve::tokens::TokenCounts to;
  const auto kinds = static_cast<std::size_t>(variants.front()->kind_accuracy_size());
  to.rules.accuracy.resize(std::max<std::size_t>(kinds, 1));
  for (const auto* variant : variants) {
    to.variants.push_back(model(variant->model())->variant);
    to.rules.energy.push_back(variant->energy());
    for (std::size_t kind = 0; kind < to.rules.accuracy.size(); ++kind) {
      to.rules.accuracy[kind].push_back(kinds == 0 ? variant->accuracy()
                                                   : variant->kind_accuracy(static_cast<int>(kind)));
    }
  }
  if (std::all_of(to.rules.energy.begin(), to.rules.energy.end(), [](double e) { return e == 0; })) {
    to.rules.energy.clear();
  }
  to.rules.policy = solve::tokens::parse_token_policy(rule.rule());
  to.rules.alike = {.delta = ns(rule.delta_us()), .most = rule.batch(), .eta = ns(rule.eta_us()), .mu = rule.mu()};
  to.rules.beta = rule.beta();
  to.rules.initial = ns(rule.initial_us());
  to.rules.kappa = rule.kappa();
  to.rules.window = ns(rule.window_us());
  to.rules.horizon = ns(rule.horizon_us());
  to.rules.looked_at = rule.looked_at();
  return to;
}

FlowSpec::Chunks chunks_of(const v1::Chunks& from) {
  return {.window = static_cast<std::int32_t>(from.window()), .stride = static_cast<std::int32_t>(from.stride())};
}

MaybeFault check_chunks(const v1::Chunks& chunks, const std::string& where) {
  if (chunks.window() > 2 && chunks.window() <= 1U << 20 && chunks.stride() > 0 &&
      chunks.stride() <= chunks.window() - 2) {
    return {};
  }
  return invalid(where + "chunks need a window above 2 and a stride of 1 to window - 2 tokens");
}

// Whether clients may have this output of a stage. Answers about tokens refer to the stage's tokens, so they may not.
bool answers(const OutputSpec& output) {
  const bool one = output.item != 0 || output.dims.empty() || output.dims.front() >= 0;  // BYTES of a known number
  return !output.token_level && !output.of_children && !output.on_request && one;
}

// Whether both models accept the same rows.
bool take_alike(const ModelSpec& a, const ModelSpec& b) {
  return a.of_tensors() == b.of_tensors() &&
         (!a.of_tensors() || std::equal(a.inputs.begin(), a.inputs.end(), b.inputs.begin(), b.inputs.end(),
                                        [](const InputSpec& one, const InputSpec& other) {
                                          return one.name == other.name && one.datatype == other.datatype &&
                                                 one.dims == other.dims;
                                        }));
}

// Whether both models answer rows alike; their other outputs do not matter.
bool same(const ModelSpec& a, const ModelSpec& b) {
  const auto answers_of = [](const ModelSpec& model) {
    std::vector<OutputSpec> found;
    std::copy_if(model.outputs.begin(), model.outputs.end(), std::back_inserter(found), answers);
    return found;
  };
  const auto x = answers_of(a);
  const auto y = answers_of(b);
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](const OutputSpec& one, const OutputSpec& other) {
    return one.name == other.name && one.datatype == other.datatype && one.dims == other.dims;
  });
}

// Whether both models number their tasks alike.
bool same_tasks(const ModelSpec& a, const ModelSpec& b) {
  return a.tasks.empty() ||
         std::equal(a.tasks.begin(), a.tasks.end(), b.tasks.begin(), b.tasks.end(),
                    [](const TaskSpec& one, const TaskSpec& other) { return one.name == other.name; });
}

MaybeFault check_rule(const v1::PipelineStage& stage, const std::string& where) {
  const auto& rule = stage.tokens();
  const std::string place = where + "tokens of stage '" + stage.name() + "': ";
  if (rule.rule() != "printed" && rule.rule() != "price") {
    return invalid(place + "'" + rule.rule() + "' is neither printed nor price");
  }
  constexpr std::uint64_t kMostUs = 3'600'000'000;
  const bool in_range = rule.delta_us() <= kMostUs && rule.eta_us() <= kMostUs && rule.initial_us() <= kMostUs &&
                        rule.window_us() <= kMostUs && rule.horizon_us() <= kMostUs && rule.batch() <= 65536 &&
                        rule.looked_at() <= 64;
  const bool numbers = rule.mu() >= 0 && rule.kappa() >= 0 && rule.shadow() >= 0 && rule.shadow() <= 1;
  if (!in_range || !numbers || rule.batch() == 0 || rule.window_us() == 0 || rule.horizon_us() == 0 ||
      rule.looked_at() == 0) {
    return invalid(place +
                   "batch, window_us, horizon_us and looked_at (at most 64) must be above 0, times at most an hour");
  }
  for (const auto& variant : stage.variants()) {
    if (!variant.has_tokens()) return invalid(place + "variant '" + variant.model() + "' does not say its own");
  }
  return {};
}

// `entry`: a model of the first stage; null: this is the first stage.
MaybeFault check_stage(const v1::PipelineStage& stage, const FindModel& model, const ModelSpec* entry,
                       const std::string& where) {
  if (stage.name().empty()) return invalid(where + "a stage has no name");
  if (stage.variants().empty()) return invalid(where + "stage '" + stage.name() + "' has no variant");
  const auto first = model(stage.variants(0).model());
  for (const auto& variant : stage.variants()) {
    const auto one = model(variant.model());
    if (one == nullptr) return invalid(where + "variant '" + variant.model() + "' is no model of the deployment");
    if (!std::isfinite(variant.energy()) || variant.energy() < 0) {
      return invalid(where + "variant '" + one->name + "' needs an energy of at least 0");
    }
    if (variant.has_calibrator()) {
      const int logits = one->find_output(stage.logits());
      const auto dims = logits < 0 ? std::vector<std::int64_t>() : one->outputs[static_cast<std::size_t>(logits)].dims;
      try {
        flow::validate(flow::Judge{.calibrator = calibrator_of(variant.calibrator())},
                       static_cast<std::size_t>(dims.size() == 1 ? std::max<std::int64_t>(dims.front(), 0) : 0),
                       "variant '" + one->name + "'");
      } catch (const std::invalid_argument& error) {
        return invalid(where + error.what());
      }
    }
    // Tensors in addition to token ids come from the client, for the entry's inputs.
    const auto& begins = entry == nullptr ? *first : *entry;
    const auto given = [&](const InputSpec& input) {
      const int at = input.role == Role::kTensor ? begins.find_input(input.name) : -1;
      return one->of_tensors() || (at >= 0 && begins.inputs[static_cast<std::size_t>(at)].datatype == input.datatype &&
                                   begins.inputs[static_cast<std::size_t>(at)].dims == input.dims);
    };
    const auto needed = std::find_if(one->inputs.begin(), one->inputs.end(), [&](const auto& input) {
      const bool made = input.role == Role::kIds || input.role == Role::kMask || input.optional;
      return !made && !given(input);
    });
    if (needed != one->inputs.end()) {
      return invalid(where + "variant '" + one->name + "' needs input '" + needed->name +
                     "': rows of a pipeline are token ids, and all inputs that the entry has not must be optional");
    }
    if (!take_alike(*one, *first)) {
      return invalid(where + "variant '" + one->name + "' takes other inputs than '" + first->name + "'");
    }
    if (!same(*one, *first)) {
      return invalid(where + "variant '" + one->name + "' has other outputs than '" + first->name + "'");
    }
    if (!stage.logits().empty() && one->find_output(stage.logits()) < 0) {
      return invalid(where + "variant '" + one->name + "' has no output '" + stage.logits() + "', which is judged");
    }
    if (!same_tasks(*one, begins)) {
      return invalid(where + "variant '" + one->name + "' has other tasks than '" + begins.name + "'");
    }
    const auto right = [](double value) { return value >= 0 && value <= 1; };
    const auto& by_kind = variant.kind_accuracy();
    const auto kinds = std::max<std::size_t>(one->tasks.size(), 1) * std::max(stage.bins_size(), 1);
    if ((!by_kind.empty() && static_cast<std::size_t>(by_kind.size()) != kinds) ||
        by_kind.size() != stage.variants(0).kind_accuracy_size() ||
        !std::all_of(by_kind.begin(), by_kind.end(), right)) {
      return invalid(where + "variant '" + one->name +
                     "' needs a kind_accuracy of 0 to 1 for each task and each of the stage's length bins, as all "
                     "variants of its stage have, or none");
    }
    if (one->vocabulary != first->vocabulary) {
      return invalid(where + "variant '" + one->name + "' has another vocabulary than '" + first->name + "'");
    }
  }
  if (std::adjacent_find(stage.bins().begin(), stage.bins().end(), std::greater_equal<>()) != stage.bins().end()) {
    return invalid(where + "stage '" + stage.name() + "': bins must ascend");
  }
  if (stage.has_tokens()) {
    if (auto fault = check_rule(stage, where)) return fault;
  }
  if (!stage.logits().empty()) {
    const int at = first->find_output(stage.logits());
    if (at < 0 || first->outputs[static_cast<std::size_t>(at)].datatype != "FP32") {
      return invalid(where + "stage '" + stage.name() + "' has no output '" + stage.logits() +
                     "' of FP32, which is judged");
    }
  }
  return {};
}

MaybeFault check_pipeline(const v1::Pipeline& from, const FindModel& model) {
  const std::string where = "pipeline '" + from.name() + "': ";
  if (from.slo_ms() == 0 || from.default_timeout_ms() == 0 || from.max_children() == 0 || from.max_bytes() == 0) {
    return invalid(where + "slo_ms, default_timeout_ms, max_children and max_bytes must be above 0");
  }
  const bool share = from.audit() >= 0 && from.audit() <= 1;
  if (!share) return invalid(where + "audit must be 0 to 1");
  std::set<std::string> names;
  for (const auto& tenant : from.tenants()) {
    if (tenant.name().empty() || !names.insert(tenant.name()).second) {
      return invalid(where + "tenant '" + tenant.name() + "' is there twice, or has no name");
    }
    const bool good = std::isfinite(tenant.share()) && tenant.share() > 0;
    if (!good) {
      return invalid(where + "share of tenant '" + tenant.name() + "' must be above 0");
    }
  }
  names.clear();
  std::shared_ptr<const ModelSpec> entry;
  const bool by_tokens =
      !from.stages().empty() && !from.stages(0).variants().empty() && from.stages(0).variants(0).has_tokens();
  for (const auto& stage : from.stages()) {
    if (auto fault = check_stage(stage, model, entry.get(), where)) return fault;
    for (const auto& variant : stage.variants()) {
      if (variant.has_tokens() == by_tokens) continue;
      return invalid(where + "tokens are said of some variants and not of '" + variant.model() + "'");
    }
    if (!names.insert(stage.name()).second) return invalid(where + "two stages are '" + stage.name() + "'");
    if (entry == nullptr) entry = model(stage.variants(0).model());
  }
  if (from.has_chunks()) {
    if (entry != nullptr && entry->of_tensors())
      return invalid(where + "chunks are of token ids, and the entry takes tensors");
    if (auto fault = check_chunks(from.chunks(), where)) return fault;
  }
  for (const auto& edge : from.edges()) {
    if (edge.from() >= static_cast<std::uint32_t>(from.stages_size()) || edge.to() >= from.stages_size()) {
      return invalid(where + "an edge names a stage that is not there");
    }
    if (edge.has_join() && (edge.to() < 0 || edge.join() >= static_cast<std::uint32_t>(from.stages_size()))) {
      return invalid(where + "an edge joins rows of a stage that is not there, or at an exit");
    }
    if (auto fault = check_edge(from, edge, model, where)) return fault;
    if (edge.has_chunks()) {
      if (auto fault = check_chunks(edge.chunks(), where)) return fault;
    }
  }
  try {
    const auto core = core_of(from, model);
    pipeline::validate(core);
    pipeline::validate(plan_of(from.plan()), core);
  } catch (const std::invalid_argument& error) {
    return invalid(where + error.what());
  }
  const auto spec = make_pipeline(from, model, 0);
  const auto& stages = spec->flow->stages;
  for (const auto& edge : from.edges()) {
    FlowSpec::Edge found;
    if (edge.to() < 0) {
      if (edge.has_expand()) return invalid(where + "an exit makes no rows");
      continue;
    }
    if (auto fault = resolve(edge, stages[edge.from()], stages[static_cast<std::size_t>(edge.to())], where, found)) {
      return fault;
    }
  }
  if (spec->outputs.size() > kMaxOutputs) return invalid(where + "its stages have too many outputs");
  const bool any = std::any_of(spec->flow->stages.begin(), spec->flow->stages.end(),
                               [](const auto& stage) { return stage.ends && !stage.outputs.empty(); });
  if (!any) return invalid(where + "no stage that ends rows has an output for each row");
  if (from.pool()) {
    const auto ends = std::count_if(spec->flow->stages.begin(), spec->flow->stages.end(),
                                    [](const auto& stage) { return stage.ends; });
    for (const auto& stage : spec->flow->stages) {
      for (const int output : stage.outputs) {
        if (ends == 1 && spec->outputs[static_cast<std::size_t>(output)].datatype == "FP32") continue;
        return invalid(where + "a mean is of one stage's answers, which are FP32");
      }
    }
  }
  return {};
}

// The outputs of a variant that its stage's edges need.
OutputSet read_by_edges(const FlowSpec::Stage& stage, std::size_t variant) {
  OutputSet read = 0;
  const auto add = [&](int output) { read |= output < 0 ? 0 : OutputSet{1} << output; };
  for (const auto& edge : stage.edges) {
    const auto& expand = edge.expand;
    if (variant < expand.read.size()) add(expand.read[variant]);
    if (variant >= expand.takes.size()) continue;
    for (const auto& take : expand.takes[variant]) {
      if (take.from != FlowSpec::Take::From::kOwn) add(take.index);
      if (take.from == FlowSpec::Take::From::kChild) add(stage.variants[variant].model->counts);
    }
  }
  return read;
}

}  // namespace

std::uint32_t FlowSpec::Stage::kind(std::uint32_t task, std::int32_t length) const {
  if (bins.empty()) return task;
  const auto at = std::lower_bound(bins.begin(), bins.end() - 1, length) - bins.begin();
  return task * static_cast<std::uint32_t>(bins.size()) + static_cast<std::uint32_t>(at);
}

namespace {

// A batch can use any of the stage's token counts only if each instance holds all of them or none.
MaybeFault check_holders(const v1::Deployment& deployment, const v1::PipelineStage& stage, const std::string& where) {
  std::map<std::string, std::set<std::string>> held;  // models by runtime and bundle
  for (const auto& runtime : deployment.runtimes()) held[runtime.name()].insert(model_of(deployment, runtime));
  for (const auto& bundle : deployment.bundles()) {
    std::set<std::string> models;
    for (const auto& name : bundle.runtimes()) models.insert(held[name].begin(), held[name].end());
    held[bundle.name()] = std::move(models);
  }
  for (const auto& instance : deployment.instances()) {
    const auto& models = held[instance.runtime()];
    const auto here = std::count_if(stage.variants().begin(), stage.variants().end(),
                                    [&](const auto& variant) { return models.contains(variant.model()); });
    if (here == 0 || here == stage.variants_size()) continue;
    return invalid(where + "tokens of stage '" + stage.name() + "': instance '" + instance.id() +
                   "' holds some of its variants: instances hold all of them or none");
  }
  return {};
}

}  // namespace

bool alike(const ModelSpec& a, const ModelSpec& b) {
  const auto inputs = [](const InputSpec& one, const InputSpec& other) {
    return one.name == other.name && one.datatype == other.datatype && one.role == other.role &&
           one.pad_value == other.pad_value && one.optional == other.optional;
  };
  const auto outputs = [](const OutputSpec& one, const OutputSpec& other) {
    return one.name == other.name && one.datatype == other.datatype && one.dims == other.dims &&
           one.token_level == other.token_level && one.on_request == other.on_request;
  };
  return std::equal(a.inputs.begin(), a.inputs.end(), b.inputs.begin(), b.inputs.end(), inputs) &&
         std::equal(a.outputs.begin(), a.outputs.end(), b.outputs.begin(), b.outputs.end(), outputs) &&
         a.ids == b.ids && a.mask == b.mask;
}

MaybeFault check_flows(const v1::Deployment& deployment) {
  if (deployment.cascades().empty() && deployment.pipelines().empty()) return {};
  std::set<std::string> names;
  std::set<std::string> taken;
  std::vector<std::shared_ptr<const ModelSpec>> models;
  for (const v1::Model* model : models_of(deployment)) {
    names.insert(model->name());
    models.push_back(make_model(deployment, *model, static_cast<std::uint16_t>(models.size())));
  }
  const FindModel find = [&](const std::string& name) -> std::shared_ptr<const ModelSpec> {
    const auto found = std::find_if(models.begin(), models.end(), [&](const auto& one) { return one->name == name; });
    return found == models.end() ? nullptr : *found;
  };
  const auto check_name = [&](const char* kind, const std::string& name) -> MaybeFault {
    if (!name.empty() && names.insert(name).second) return {};
    return invalid(std::string(kind) + " '" + name + "' has no name, or that of another model");
  };
  const auto take = [&](const std::string& model) -> MaybeFault {
    if (taken.insert(model).second) return {};
    return invalid("model '" + model + "' is a stage twice, or a variant, which is not supported");
  };
  for (const auto& from : deployment.cascades()) {
    if (auto fault = check_name("cascade", from.name())) return fault;
    for (const auto& stage : from.stages()) {
      if (auto fault = take(stage.model())) return fault;
    }
    if (auto fault = check_cascade(from, find)) return fault;
  }
  for (const auto& from : deployment.pipelines()) {
    if (auto fault = check_name("pipeline", from.name())) return fault;
    for (const auto& stage : from.stages()) {
      for (const auto& variant : stage.variants()) {
        if (auto fault = take(variant.model())) return fault;
      }
    }
    if (auto fault = check_pipeline(from, find)) return fault;
    for (const auto& stage : from.stages()) {
      if (!stage.has_tokens()) continue;
      if (auto fault = check_holders(deployment, stage, "pipeline '" + from.name() + "': ")) return fault;
    }
  }
  return {};
}

std::shared_ptr<const ModelSpec> make_pipeline(const v1::Pipeline& from, const FindModel& model,
                                               dispatch::VariantId variant) {
  auto flow = std::make_shared<FlowSpec>();
  flow->core = core_of(from, model);
  flow->plan = plan_of(from.plan());
  if (from.has_chunks()) flow->chunks = chunks_of(from.chunks());
  flow->pool = from.pool();
  flow->max_bytes = from.max_bytes();
  flow->audit = from.audit();
  for (const auto& tenant : from.tenants()) flow->tenants.push_back({tenant.name(), tenant.share()});
  auto content = from;
  content.clear_plan();
  flow->content = std::hash<std::string>{}(content.SerializeAsString());
  flow->plan_content = std::hash<std::string>{}(from.plan().SerializeAsString());
  for (const auto& stage : from.stages()) {
    auto& to = flow->stages.emplace_back();
    to.name = stage.name();
    to.first = stage.first();
    if (stage.has_tokens()) {
      to.counts = counts_of(stage, model);
      to.shadow = stage.tokens().shadow();
    }
    to.told = stage.told();
    to.bins.assign(stage.bins().begin(), stage.bins().end());
    for (const auto& one : stage.variants()) {
      auto& each = to.variants.emplace_back();
      each.model = model(one.model());
      each.logits = stage.logits().empty() ? -1 : each.model->find_output(stage.logits());
      if (one.has_calibrator()) each.judge.calibrator = calibrator_of(one.calibrator());
      each.tokens = one.tokens();
      each.by_kind.assign(one.kind_accuracy().begin(), one.kind_accuracy().end());
    }
  }
  std::int32_t number = 0;
  for (const auto& edge : from.edges()) {
    auto& to = flow->stages[edge.from()].edges.emplace_back();
    if (edge.to() >= 0) to.core = number++;
    to.score = score_of(edge.guard().score());
    flow->stages[edge.from()].guards.push_back(guard_of(edge.guard(), to.core));
    to.weights.assign(edge.weights().begin(), edge.weights().end());
    if (const auto& prune = edge.prune(); edge.has_prune()) {
      to.prune = std::make_shared<const FlowSpec::Prune>(FlowSpec::Prune{
          prune_of(prune), vocabulary_of(prune.vocabulary()), {prune.levels().begin(), prune.levels().end()}});
    }
    if (edge.has_chunks()) to.chunks = chunks_of(edge.chunks());
    if (edge.to() >= 0) {
      static_cast<void>(
          resolve(edge, flow->stages[edge.from()], flow->stages[static_cast<std::size_t>(edge.to())], "", to));
    }
  }

  auto out = std::make_shared<ModelSpec>();
  const auto& entry = *flow->stages.front().variants.front().model;
  out->name = from.name();
  out->variant = variant;
  out->inputs = entry.inputs;
  out->ids = entry.ids;
  out->mask = entry.mask;
  out->task = entry.task;
  out->tasks = entry.tasks;
  if (flow->stages.size() == 1 && flow->chunks.window == 0) {  // one answer per row: like the model itself
    out->text = entry.text;
    out->labels = entry.labels;
    out->prompts = entry.prompts;
    out->default_prompt = entry.default_prompt;
    out->dimensions = entry.dimensions;
    out->label_activation = entry.label_activation;
    out->score_activation = entry.score_activation;
  }
  out->vocabulary = entry.vocabulary;
  out->slo_ns = TimeNs{from.slo_ms()} * kMs;
  out->default_timeout_ns = TimeNs{from.default_timeout_ms()} * kMs;
  for (const auto& one : flow->stages.front().variants) out->longest = std::max(out->longest, one.model->longest);
  if (flow->chunks.window > 0) out->longest = 1 << 20;

  std::size_t ends = 0;
  for (auto& stage : flow->stages) {
    // A row of the stage ends at an exit, or when no edge takes it.
    stage.judged = stage.judged || std::any_of(stage.guards.begin(), stage.guards.end(),
                                               [](const auto& guard) { return guard.judges(); });
    bool goes = false;
    for (std::size_t e = 0; e < stage.edges.size(); ++e) {
      const auto& edge = stage.edges[e];
      const auto* core = edge.core < 0 ? nullptr : &flow->core.edges[static_cast<std::size_t>(edge.core)];
      goes = goes || (!stage.guards[e].judges() && (core == nullptr || !core->falls_back));
      if (edge.weights.empty()) continue;
      stage.judged = flow->stages[static_cast<std::size_t>(core->to)].judged = true;
    }
    const bool exits = std::any_of(stage.edges.begin(), stage.edges.end(), [](const auto& e) { return e.core < 0; });
    stage.ends = exits || !goes;
    ends += stage.ends || stage.told ? 1 : 0;
  }
  out->usual = 0;
  const auto add = [&](OutputSpec output, bool usual) {
    output.on_request = !usual;
    if (usual && out->outputs.size() < kMaxOutputs) out->usual |= OutputSet{1} << out->outputs.size();
    out->outputs.push_back(std::move(output));
    return static_cast<int>(out->outputs.size()) - 1;
  };
  const auto make = [&](std::string name, const char* datatype, std::size_t item, bool usual) {
    return add({std::move(name), datatype, item, false, {}, false}, usual);
  };
  for (auto& stage : flow->stages) {
    if (!stage.ends && !stage.told) continue;
    const std::string prefix = ends > 1 ? stage.name + "." : "";
    for (const auto& output : stage.variants.front().model->outputs) {
      if (!answers(output)) continue;
      auto mine = output;
      mine.name = prefix + output.name;
      stage.of.push_back(output.name);
      stage.outputs.push_back(add(std::move(mine), stage.ends));
    }
    for (auto& each : stage.variants) {
      for (const auto& name : stage.of) each.answers |= OutputSet{1} << each.model->find_output(name);
    }
    if (!flow->pool) stage.row = make(prefix + "row", "INT32", 4, stage.ends);
  }
  for (auto& stage : flow->stages) {
    for (auto& each : stage.variants) {
      if (stage.judged) each.answers |= OutputSet{1} << each.logits;
      each.answers |= read_by_edges(stage, static_cast<std::size_t>(&each - stage.variants.data()));
      // Request at least one output, if only to know that the stage finished.
      if (each.answers == 0) each.answers = each.model->usual & (~each.model->usual + 1);
      if (each.model->counts >= 0) each.answers |= OutputSet{1} << each.model->counts;
    }
  }
  flow->made.answers = make("children", "INT32", 4, false);
  flow->made.accuracy = make("accuracy_expected", "FP32", 4, false);
  flow->made.reason = make("reason", "INT32", 4, false);
  flow->made.dropped = make("dropped_rows", "INT32", 4, false);
  flow->made.rerouted = make("rerouted", "INT32", 4, false);
  flow->made.route = make("route", "BYTES", 0, false);
  if (from.stages(0).variants(0).has_tokens()) flow->made.tokens = make("tokens", "INT32", 4, false);
  out->flow = std::move(flow);
  return out;
}

}  // namespace arlo::gateway
