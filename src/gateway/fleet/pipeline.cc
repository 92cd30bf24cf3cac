#include "gateway/fleet/pipeline.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "gateway/fleet/edges.h"
#include "gateway/fleet/rules.h"

namespace arlo::gateway {
namespace {

namespace pipeline = flow::pipeline;

TimeNs ns(std::uint64_t us) { return static_cast<TimeNs>(us) * 1000; }

pipeline::Spec core_of(const v1::Pipeline& from, const FindModel& find) {
  pipeline::Spec to;
  for (const auto& stage : from.stages()) {
    auto& spec = to.stages.emplace_back();
    for (const auto& variant : stage.variants()) {
      spec.variants.push_back({.id = find(variant.model())->variant,
                               .accuracy = variant.accuracy(),
                               .least = ns(variant.least_us()),
                               .work = variant.work_s(),
                               .energy = variant.energy()});
    }
    if (!stage.has_tokens()) continue;
    const auto fewest =
        std::min_element(stage.variants().begin(), stage.variants().end(),
                         [](const auto& one, const auto& other) { return one.tokens() < other.tokens(); });
    spec.line = static_cast<std::int32_t>(fewest - stage.variants().begin());
  }
  const auto stages = static_cast<std::uint32_t>(from.stages_size());
  for (const auto& edge : from.edges()) {
    need(edge.from() < stages && edge.to() < from.stages_size(), "an edge names a stage that is not there");
    need(!edge.has_join() || (edge.to() >= 0 && edge.join() < stages),
         "an edge joins rows of a stage that is not there, or at an exit");
    to.follows_load = to.follows_load || guard_of(edge.guard()).follows_load();
    if (edge.to() < 0) continue;
    to.edges.push_back({.from = static_cast<std::int32_t>(edge.from()),
                        .to = edge.to(),
                        .factor = {edge.factor().begin(), edge.factor().end()},
                        .hop = ns(edge.hop_us()),
                        .falls_back = edge.falls_back(),
                        .join = edge.has_join() ? static_cast<std::int32_t>(edge.join()) : -1});
  }
  to.accuracy.assign(from.accuracy().begin(), from.accuracy().end());
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
  pipeline::validate(to);
  return to;
}

pipeline::Plan plan_of(const v1::PipelinePlan& from, const pipeline::Spec& spec) {
  pipeline::Plan to;
  to.price = from.price();
  to.demand = from.demand();
  to.share.assign(from.share().begin(), from.share().end());
  to.rate.assign(from.rate().begin(), from.rate().end());
  to.feasible.assign(from.feasible().begin(), from.feasible().end());
  for (const auto us : from.budget_us()) to.budget.push_back(ns(us));
  for (const auto us : from.time_us()) to.time.push_back(ns(us));
  pipeline::validate(to, spec);
  return to;
}

// The stage's variants by token count, the fewest first, in the scheduler's form.
solve::tokens::TokenCounts counts_of(const v1::PipelineStage& from, const FindModel& find) {
  const v1::TokenRule& rule = from.tokens();
  need(rule.rule() == "printed" || rule.rule() == "price", "'" + rule.rule() + "' is neither printed nor price");
  constexpr std::uint64_t kMostUs = 3'600'000'000;
  for (const auto us : {rule.delta_us(), rule.eta_us(), rule.initial_us(), rule.window_us(), rule.horizon_us()}) {
    need(us <= kMostUs, "times are at most an hour");
  }
  need(rule.batch() > 0 && rule.batch() <= 65536 && rule.window_us() > 0 && rule.horizon_us() > 0 &&
           rule.looked_at() > 0 && rule.looked_at() <= 64,
       "batch (at most 65536), window_us, horizon_us and looked_at (at most 64) must be above 0");
  need(rule.mu() >= 0 && rule.kappa() >= 0 && rule.shadow() >= 0 && rule.shadow() <= 1,
       "mu and kappa must be at least 0, and shadow a share");
  std::vector<const v1::PipelineVariant*> variants;
  for (const auto& variant : from.variants()) variants.push_back(&variant);
  std::stable_sort(variants.begin(), variants.end(),
                   [](const auto* one, const auto* other) { return one->tokens() < other->tokens(); });
  solve::tokens::TokenCounts to;
  const auto kinds = static_cast<std::size_t>(variants.front()->kind_accuracy_size());
  to.rules.accuracy.resize(std::max<std::size_t>(kinds, 1));
  for (const auto* variant : variants) {
    to.variants.push_back(find(variant->model())->variant);
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

// Whether clients may have this output of a stage. Answers about tokens refer to the stage's tokens, so they may not.
bool answers(const OutputSpec& output) {
  const bool one = output.item != 0 || output.dims.empty() || output.dims.front() >= 0;  // BYTES of a known number
  return !output.token_level && !output.of_children && !output.on_request && one;
}

std::vector<OutputSpec> answers_of(const ModelSpec& model) {
  std::vector<OutputSpec> found;
  std::copy_if(model.outputs.begin(), model.outputs.end(), std::back_inserter(found), answers);
  return found;
}

// Variants of a stage take the same rows and answer them alike. `begins`: the model of the entry.
void check_alike(const ModelSpec& one, const ModelSpec& first, const ModelSpec& begins) {
  const std::string name = "variant '" + one.name + "' ";
  // Tensors in addition to token ids come from the client, for the entry's inputs.
  for (const auto& input : one.inputs) {
    const int at = input.role == Role::kTensor ? begins.find_input(input.name) : -1;
    const auto* given = at < 0 ? nullptr : &begins.inputs[static_cast<std::size_t>(at)];
    const bool made = input.role == Role::kIds || input.role == Role::kMask || input.optional || one.of_tensors();
    need(made || (given != nullptr && given->datatype == input.datatype && given->dims == input.dims),
         name + "needs input '" + input.name +
             "': rows of a pipeline are token ids, and all inputs that the entry has not must be optional");
  }
  need(one.of_tensors() == first.of_tensors() &&
           (!one.of_tensors() ||
            same_in(one.inputs, first.inputs, &InputSpec::name, &InputSpec::datatype, &InputSpec::dims)),
       name + "takes other inputs than '" + first.name + "'");
  need(same_in(answers_of(one), answers_of(first), &OutputSpec::name, &OutputSpec::datatype, &OutputSpec::dims),
       name + "has other outputs than '" + first.name + "'");
  need(one.tasks.empty() || same_in(one.tasks, begins.tasks, &TaskSpec::name),
       name + "has other tasks than '" + begins.name + "'");
  need(one.vocabulary == first.vocabulary, name + "has another vocabulary than '" + first.name + "'");
}

FlowSpec::Variant variant_of(const v1::PipelineStage& stage, const v1::PipelineVariant& from, const ModelSpec& begins,
                             std::shared_ptr<const ModelSpec> model, const ModelSpec& first) {
  check_alike(*model, first, begins);
  const std::string name = "variant '" + model->name + "' ";
  need(std::isfinite(from.energy()) && from.energy() >= 0, name + "needs an energy of at least 0");
  FlowSpec::Variant to;
  std::size_t labels = 0;
  if (!stage.logits().empty()) {
    to.logits = floats_of(*model, stage.logits(), "which is judged");
    const auto& dims = model->outputs[static_cast<std::size_t>(to.logits)].dims;
    if (dims.size() == 1) labels = static_cast<std::size_t>(std::max<std::int64_t>(dims.front(), 0));
  }
  if (from.has_calibrator()) {
    to.judge.calibrator = calibrator_of(from.calibrator());
    flow::validate(to.judge, labels, "variant '" + model->name + "'");
  }
  to.tokens = from.tokens();
  to.by_kind.assign(from.kind_accuracy().begin(), from.kind_accuracy().end());
  const auto kinds = std::max<std::size_t>(model->tasks.size(), 1) * std::max(stage.bins_size(), 1);
  need((to.by_kind.empty() || to.by_kind.size() == kinds) &&
           std::ssize(to.by_kind) == stage.variants(0).kind_accuracy_size() &&
           std::all_of(to.by_kind.begin(), to.by_kind.end(), [](double value) { return value >= 0 && value <= 1; }),
       name +
           "needs a kind_accuracy of 0 to 1 for each task and each of the stage's length bins, as all variants of its "
           "stage have, or none");
  to.model = std::move(model);
  return to;
}

// A batch can use any of the stage's token counts only if each instance holds all of them or none.
void check_holders(const v1::Deployment& deployment, const v1::PipelineStage& stage) {
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
    need(here == 0 || here == stage.variants_size(),
         "instance '" + instance.id() + "' holds some of its variants: instances hold all of them or none");
  }
}

// `entry`: a model of the first stage; null: this is the first stage.
FlowSpec::Stage stage_of(const v1::Deployment& deployment, const v1::PipelineStage& from, const FindModel& find,
                         const ModelSpec* entry) {
  FlowSpec::Stage to;
  to.name = from.name();
  to.first = from.first();
  to.told = from.told();
  to.bins.assign(from.bins().begin(), from.bins().end());
  need(!to.name.empty(), "a stage has no name");
  need(!from.variants().empty(), "stage '" + to.name + "' has no variant");
  need(std::adjacent_find(to.bins.begin(), to.bins.end(), std::greater_equal<>()) == to.bins.end(),
       "stage '" + to.name + "': bins must ascend");
  for (const auto& variant : from.variants()) {
    auto model = find(variant.model());
    need(model != nullptr, "variant '" + variant.model() + "' is no model of the deployment");
    need(variant.has_tokens() == from.variants(0).has_tokens() && (variant.has_tokens() || !from.has_tokens()),
         "either all variants have tokens, or none: '" + variant.model() + "' differs from the first");
    const auto first = to.variants.empty() ? model : to.variants.front().model;
    to.variants.push_back(variant_of(from, variant, entry == nullptr ? *first : *entry, std::move(model), *first));
  }
  if (!from.has_tokens()) return to;
  within("tokens of stage '" + to.name + "': ", [&] {
    to.counts = counts_of(from, find);
    to.shadow = from.tokens().shadow();
    check_holders(deployment, from);
  });
  return to;
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

// A row of a stage ends at an exit, or when no edge takes it.
void find_ends(FlowSpec& flow) {
  for (auto& stage : flow.stages) {
    stage.judged = stage.judged || std::any_of(stage.guards.begin(), stage.guards.end(),
                                               [](const auto& guard) { return guard.judges(); });
    bool goes = false;
    for (std::size_t e = 0; e < stage.edges.size(); ++e) {
      const auto& edge = stage.edges[e];
      const auto* core = edge.core < 0 ? nullptr : &flow.core.edges[static_cast<std::size_t>(edge.core)];
      goes = goes || (!stage.guards[e].judges() && (core == nullptr || !core->falls_back));
      if (edge.weights.empty()) continue;
      stage.judged = flow.stages[static_cast<std::size_t>(core->to)].judged = true;
    }
    const bool exits = std::any_of(stage.edges.begin(), stage.edges.end(), [](const auto& e) { return e.core < 0; });
    stage.ends = exits || !goes;
  }
}

void set_outputs(FlowSpec& flow, ModelSpec& out, bool by_tokens) {
  const auto ends = std::count_if(flow.stages.begin(), flow.stages.end(), [](auto& s) { return s.ends; });
  const auto all = std::count_if(flow.stages.begin(), flow.stages.end(), [](auto& s) { return s.ends || s.told; });
  out.usual = 0;
  const auto add = [&](OutputSpec output, bool usual) {
    output.on_request = !usual;
    if (usual && out.outputs.size() < kMaxOutputs) out.usual |= OutputSet{1} << out.outputs.size();
    out.outputs.push_back(std::move(output));
    return static_cast<int>(out.outputs.size()) - 1;
  };
  const auto make = [&](std::string name, const char* datatype, std::size_t item, bool usual) {
    return add({std::move(name), datatype, item, false, {}, false}, usual);
  };
  bool any = false;
  for (auto& stage : flow.stages) {
    if (!stage.ends && !stage.told) continue;
    const std::string prefix = all > 1 ? stage.name + "." : "";
    for (auto& output : answers_of(*stage.variants.front().model)) {
      need(!flow.pool || (ends == 1 && output.datatype == "FP32"), "a mean is of one stage's answers, which are FP32");
      any = any || stage.ends;
      stage.of.push_back(output.name);
      for (auto& each : stage.variants) each.answers |= OutputSet{1} << each.model->find_output(output.name);
      output.name = prefix + output.name;
      stage.outputs.push_back(add(std::move(output), stage.ends));
    }
    if (!flow.pool) stage.row = make(prefix + "row", "INT32", 4, stage.ends);
  }
  need(any, "no stage that ends rows has an output for each row");
  for (auto& stage : flow.stages) {
    for (auto& each : stage.variants) {
      if (stage.judged) each.answers |= OutputSet{1} << each.logits;
      each.answers |= read_by_edges(stage, static_cast<std::size_t>(&each - stage.variants.data()));
      // Request at least one output, if only to know that the stage finished.
      if (each.answers == 0) each.answers = each.model->usual & (~each.model->usual + 1);
      if (each.model->counts >= 0) each.answers |= OutputSet{1} << each.model->counts;
    }
  }
  flow.made.answers = make("children", "INT32", 4, false);
  flow.made.accuracy = make("accuracy_expected", "FP32", 4, false);
  flow.made.reason = make("reason", "INT32", 4, false);
  flow.made.dropped = make("dropped_rows", "INT32", 4, false);
  flow.made.rerouted = make("rerouted", "INT32", 4, false);
  flow.made.route = make("route", "BYTES", 0, false);
  if (by_tokens) flow.made.tokens = make("tokens", "INT32", 4, false);
  need(out.outputs.size() <= kMaxOutputs, "its stages have too many outputs");
}

}  // namespace

std::uint32_t FlowSpec::Stage::kind(std::uint32_t task, std::int32_t length) const {
  if (bins.empty()) return task;
  const auto at = std::lower_bound(bins.begin(), bins.end() - 1, length) - bins.begin();
  return task * static_cast<std::uint32_t>(bins.size()) + static_cast<std::uint32_t>(at);
}

bool alike(const ModelSpec& a, const ModelSpec& b) {
  return same_in(a.inputs, b.inputs, &InputSpec::name, &InputSpec::datatype, &InputSpec::role, &InputSpec::pad_value,
                 &InputSpec::optional) &&
         same_in(a.outputs, b.outputs, &OutputSpec::name, &OutputSpec::datatype, &OutputSpec::dims,
                 &OutputSpec::token_level, &OutputSpec::on_request) &&
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
  const auto take = [&](const std::string& model) {
    need(taken.insert(model).second, "model '" + model + "' is a stage twice, or a variant, which is not supported");
  };
  const auto check = [&](const char* kind, const std::string& name, auto make) {
    within(std::string(kind) + " '" + name + "': ", [&] {
      need(!name.empty() && names.insert(name).second, "it has no name, or that of another model");
      make();
    });
  };
  try {
    for (const auto& from : deployment.cascades()) {
      check("cascade", from.name(), [&] {
        for (const auto& stage : from.stages()) take(stage.model());
        make_cascade(deployment, from, find, 0);
      });
    }
    for (const auto& from : deployment.pipelines()) {
      check("pipeline", from.name(), [&] {
        for (const auto& stage : from.stages()) {
          for (const auto& variant : stage.variants()) take(variant.model());
        }
        make_pipeline(deployment, from, find, 0);
      });
    }
  } catch (const std::invalid_argument& error) {
    return invalid(error.what());
  }
  return {};
}

std::shared_ptr<const ModelSpec> make_pipeline(const v1::Deployment& deployment, const v1::Pipeline& from,
                                               const FindModel& find, dispatch::VariantId variant) {
  need(from.max_children() > 0 && from.max_bytes() > 0, "max_children and max_bytes must be above 0");
  need(from.audit() >= 0 && from.audit() <= 1, "audit must be 0 to 1");
  need(!from.stages().empty(), "it has no stage");
  auto flow = std::make_shared<FlowSpec>();
  flow->pool = from.pool();
  flow->max_bytes = from.max_bytes();
  flow->audit = from.audit();
  std::set<std::string> names;
  for (const auto& tenant : from.tenants()) {
    need(!tenant.name().empty() && names.insert(tenant.name()).second,
         "tenant '" + tenant.name() + "' is there twice, or has no name");
    need(std::isfinite(tenant.share()) && tenant.share() > 0,
         "share of tenant '" + tenant.name() + "' must be above 0");
    flow->tenants.push_back({tenant.name(), tenant.share()});
  }
  auto content = from;
  content.clear_plan();
  flow->content = std::hash<std::string>{}(content.SerializeAsString());
  flow->plan_content = std::hash<std::string>{}(from.plan().SerializeAsString());
  names.clear();
  const bool by_tokens = !from.stages(0).variants().empty() && from.stages(0).variants(0).has_tokens();
  for (const auto& stage : from.stages()) {
    const auto* entry = flow->stages.empty() ? nullptr : flow->stages.front().variants.front().model.get();
    flow->stages.push_back(stage_of(deployment, stage, find, entry));
    need(names.insert(stage.name()).second, "two stages are '" + stage.name() + "'");
    need(stage.variants(0).has_tokens() == by_tokens,
         "either all variants have tokens, or none: '" + stage.variants(0).model() + "' differs from the first");
  }
  const auto& entry = *flow->stages.front().variants.front().model;
  need(!from.has_chunks() || !entry.of_tensors(), "chunks are of token ids, and the entry takes tensors");
  if (from.has_chunks()) flow->chunks = chunks_of(from.chunks());
  flow->core = core_of(from, find);
  flow->plan = plan_of(from.plan(), flow->core);
  std::int32_t number = 0;
  for (const auto& edge : from.edges()) {
    const auto* head = edge.to() < 0 ? nullptr : &flow->stages[static_cast<std::size_t>(edge.to())];
    add_edge(edge, flow->stages[edge.from()], head, head == nullptr ? -1 : number++);
  }
  find_ends(*flow);

  const auto out = begin_model(from, entry, variant);
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
  for (const auto& one : flow->stages.front().variants) out->longest = std::max(out->longest, one.model->longest);
  if (flow->chunks.window > 0) out->longest = 1 << 20;
  set_outputs(*flow, *out, by_tokens);
  out->flow = std::move(flow);
  return out;
}

}  // namespace arlo::gateway
